import { useEffect, useState } from "preact/hooks";
import { api, isAwake, upload, type Disk, type Machine, type Size as Measure, type Step } from "../api";
import { bytes } from "../format";
import { progressOf } from "../parts/Meter";
import { complain, tell } from "../parts/notices";
import { ask } from "../parts/questions";
import { begun, TaskDialog, type Show } from "../parts/TaskDialog";

const MIB = 1 << 20;
const GIB = 1 << 30;
/** Least memory that a guest is brought to. */
const MEMORY_LEAST_MIB = 32;

/** Shows the steps of a long call. */
export const follow =
  (show: Show) =>
  (step: Step): void => {
    const next = progressOf(step);
    if (next) show(next);
    else if (step.event === "stage") show(begun(step.name));
  };

const cpusText = (count: number): string => (count === 1 ? "1 CPU" : `${count} CPUs`);

/** A machine gets more or fewer processors, and more or less memory. */
function Size({ machine, onClose }: { machine: Machine; onClose: () => void }) {
  const [began] = useState({ cpus: String(machine.cpus), memory: String(Math.round(machine.memory_bytes / MIB)) });
  // What is not touched stays as it is to the byte, whatever becomes of the machine while this is open. What is touched is asked for, whatever
  // this page believes that the machine has: it may be behind.
  const [cpus, setCpus] = useState<string | null>(null);
  const [memory, setMemory] = useState<string | null>(null);
  const awake = isAwake(machine.status);
  // a stopped machine’s next start gives it any size
  const most = awake ? { cpus: machine.cpus_max, memory: Math.floor(machine.memory_bytes_max / MIB) } : {};
  const run = async (show: Show, signal: AbortSignal): Promise<void> => {
    const size: Partial<Measure> = {};
    if (cpus !== null) size.cpus = Number(cpus);
    if (memory !== null) size.memory_bytes = Number(memory) * MIB;
    const { resized } = await api.resize(machine.name, size, follow(show), signal);
    if (resized) tell(`${machine.name} has ${cpusText(resized.after.cpus)} and ${bytes(resized.after.memory_bytes)} of memory.`);
    for (const short of resized?.short ?? []) complain(new Error(`${short.message}. ${short.fix}`));
  };
  return (
    <TaskDialog title={`Size of ${machine.name}`} action="Change" label="resize" run={run} onClose={onClose}>
      {(busy) => (
        <>
          <label>
            CPUs
            <input type="number" disabled={busy} value={cpus ?? began.cpus} required min={1} max={most.cpus} onInput={(event) => setCpus(event.currentTarget.value)} data-first />
          </label>
          <label>
            Memory in MiB
            <input type="number" disabled={busy} value={memory ?? began.memory} required min={MEMORY_LEAST_MIB} max={most.memory} onInput={(event) => setMemory(event.currentTarget.value)} />
          </label>
          <p class="hint">
            {awake
              ? `At most ${cpusText(machine.cpus_max)} and ${bytes(machine.memory_bytes_max)} while it runs; any size once it is stopped.`
              : "From its next start."}
          </p>
        </>
      )}
    </TaskDialog>
  );
}

type Kind = "empty" | "file" | "card";
const KINDS: [Kind, string][] = [["empty", "Empty disk"], ["file", "Disk with what is in a file"], ["card", "Network card"]];

/** A machine gets another disk or network card. */
function Attach({ machine, disks, onClose }: { machine: Machine; disks: Disk[]; onClose: () => void }) {
  const [kind, setKind] = useState<Kind>("empty");
  const [name, setName] = useState("data");
  const [size, setSize] = useState("20");
  const [file, setFile] = useState<File | null>(null);
  const [raw, setRaw] = useState(false);
  const awake = isAwake(machine.status);
  const run = async (show: Show, signal: AbortSignal): Promise<void> => {
    if (kind === "card") {
      const card = await api.attachCard(machine.name);
      return tell(`${machine.name} has the card ${card.card}${card.in_use ? "" : ", which no driver in its guest uses yet"}.`);
    }
    // before a file is sent for nothing
    if (disks.some((one) => one.alias === name)) throw new Error(`${machine.name} has a disk ${name} already. Choose another name.`);
    let disk;
    if (kind === "empty") {
      ({ disk } = await api.attachDisk(machine.name, name, { bytes: Number(size) * GIB }, follow(show), signal));
    } else if (file) {
      const sent = await upload(file, (done) => show({ label: "send", done, total: file.size, unit: "bytes" }), signal);
      try {
        ({ disk } = await api.attachDisk(machine.name, name, { path: sent.path, ...(raw && { format: "raw" }) }, follow(show), signal));
      } finally {
        await api.dropUpload(sent.id).catch(() => undefined);
      }
    }
    const unused = disk?.in_use === false ? ", which no driver in its guest uses yet" : "";
    tell(`${machine.name} has the disk ${name} (${disk?.disk ?? ""})${unused}.`);
  };
  return (
    <TaskDialog title={`Attach to ${machine.name}`} action="Attach" label="attach" run={run} onClose={onClose}>
      {(busy) => (
        <>
          <label>
            What
            <select disabled={busy} value={kind} onChange={(event) => setKind(event.currentTarget.value as Kind)} data-first>
              {KINDS.filter(([one]) => awake || one !== "card").map(([one, label]) => <option key={one} value={one}>{label}</option>)}
            </select>
          </label>
          {kind !== "card" && (
            <label>
              Name
              <input disabled={busy} value={name} required maxLength={32} onInput={(event) => setName(event.currentTarget.value)} />
            </label>
          )}
          {kind === "empty" && (
            <label>
              Size in GiB
              <input type="number" disabled={busy} value={size} required min={1} onInput={(event) => setSize(event.currentTarget.value)} />
            </label>
          )}
          {kind === "file" && (
            <>
              <label>
                File (qcow2, raw, vmdk, vdi)
                <input type="file" disabled={busy} required onChange={(event) => setFile(event.currentTarget.files?.[0] ?? null)} />
              </label>
              <label class="check">
                <input type="checkbox" disabled={busy} checked={raw} onChange={(event) => setRaw(event.currentTarget.checked)} />
                <span>
                  Raw bytes, whatever they look like
                  <span class="hint">For a disk without partitions or a file system.</span>
                </span>
              </label>
            </>
          )}
        </>
      )}
    </TaskDialog>
  );
}

async function detachDisk(machine: Machine, disk: Disk): Promise<void> {
  const shown = disk.alias ?? disk.name;
  const choices = [{ id: "detach", label: "Detach", hint: "The guest must have unmounted it.", loses: true }];
  if ((await ask(`Detach ${shown} of ${machine.name}?`, "What is on it is lost.", choices)) !== "detach") return;
  try {
    await api.detachDisk(machine.name, disk.name);
    tell(`${machine.name} has no ${shown} any more.`);
  } catch (error) {
    complain(error);
  }
}

async function detachCard(machine: Machine, card: string): Promise<void> {
  try {
    await api.detachCard(machine.name, card);
    tell(`${machine.name} has no ${card} any more.`);
  } catch (error) {
    complain(error);
  }
}

/** What a machine has of disks and cards, and what changes that and its size. */
export function Hardware({ machine }: { machine: Machine }) {
  const [disks, setDisks] = useState<Disk[]>([]);
  const [open, setOpen] = useState<"size" | "attach" | null>(null);
  // its guest may take a while to let it go
  const [leaving, setLeaving] = useState(false);
  const detach = (done: Promise<void>): void => {
    setLeaving(true);
    void done.finally(() => setLeaving(false));
  };
  useEffect(() => {
    let ended = false;
    // a machine that is just being removed has none
    api.disks(machine.name).then((list) => !ended && setDisks(list), () => undefined);
    return () => {
      ended = true;
    };
    // again with the machine, which is looked at again whenever something has happened
  }, [machine]);
  const cards = machine.cards ?? [];
  const close = (): void => setOpen(null);
  return (
    <section aria-label="Hardware">
      <h3>Disks and cards</h3>
      <ul class="devices">
        {disks.map((disk) => (
          <li key={disk.name}>
            <span>{disk.alias ? `${disk.alias} (${disk.name})` : disk.name}, {bytes(disk.bytes)}</span>
            {/^disk[1-9]/.test(disk.name) && (
              <button disabled={leaving} aria-label={`Detach ${disk.alias ?? disk.name}`} onClick={() => detach(detachDisk(machine, disk))}>Detach</button>
            )}
          </li>
        ))}
        {cards.map((card) => (
          <li key={card}>
            <span>{card}</span>
            <button disabled={leaving} aria-label={`Detach ${card}`} onClick={() => detach(detachCard(machine, card))}>Detach</button>
          </li>
        ))}
      </ul>
      <p class="buttons">
        <button onClick={() => setOpen("size")}>Size</button>
        <button onClick={() => setOpen("attach")}>Attach</button>
      </p>
      {open === "size" && <Size machine={machine} onClose={close} />}
      {open === "attach" && <Attach machine={machine} disks={disks} onClose={close} />}
    </section>
  );
}
