import { useEffect, useState } from "preact/hooks";
import { api, isAwake, isLent, type Machine, type Size } from "../api";
import { duration } from "../format";
import { Icon } from "../parts/Icon";
import { complain, tell } from "../parts/notices";
import { TaskDialog, type Show } from "../parts/TaskDialog";
import { follow } from "./Hardware";

const MIB = 1 << 20;

/** The names of the nodes that this one is paired with. */
function usePaired(): string[] {
  const [paired, setPaired] = useState<string[]>([]);
  useEffect(() => {
    let ended = false;
    // without an answer there is nothing to be chosen
    api.paired().then((names) => !ended && setPaired(names), () => undefined);
    return () => {
      ended = true;
    };
  }, []);
  return paired;
}

/** A machine goes on on another node for a while. */
function Lend({ machine, paired, onClose }: { machine: Machine; paired: string[]; onClose: () => void }) {
  const [to, setTo] = useState(paired[0] ?? "");
  // as typed; what stays empty is as it is here
  const [cpus, setCpus] = useState("");
  const [memory, setMemory] = useState("");
  const run = async (show: Show, signal: AbortSignal): Promise<void> => {
    const size: Partial<Size> = {};
    if (cpus !== "") size.cpus = Number(cpus);
    if (memory !== "") size.memory_bytes = Number(memory) * MIB;
    const { moved, resized } = await api.offload(machine.name, to, size, follow(show), signal);
    tell(`${machine.name} is on ${moved?.to ?? to}; it stood still for ${duration(moved?.down_ms ?? 0)}.`);
    if (moved?.trouble) complain(new Error(`It does not run there yet: ${moved.trouble}`));
    for (const short of resized?.short ?? []) complain(new Error(`${short.message}. ${short.fix}`));
  };
  return (
    <TaskDialog title={`Offload ${machine.name}`} action="Offload" label="offload" run={run} onClose={onClose}>
      {(busy) => (
        <>
          <label>
            To
            <select disabled={busy} value={to} onChange={(event) => setTo(event.currentTarget.value)} data-first>
              {paired.map((name) => <option key={name} value={name}>{name}</option>)}
            </select>
          </label>
          <label>
            CPUs there
            <input type="number" disabled={busy} value={cpus} min={1} max={machine.cpus_max} onInput={(event) => setCpus(event.currentTarget.value)} />
          </label>
          <label>
            Memory there in MiB
            <input type="number" disabled={busy} value={memory} min={1} max={Math.floor(machine.memory_bytes_max / MIB)} onInput={(event) => setMemory(event.currentTarget.value)} />
          </label>
          <p class="hint">It goes on there, is shown and used here, and comes back when it is recalled. What is left empty is as it is here.</p>
        </>
      )}
    </TaskDialog>
  );
}

/** A machine that is lent comes back. */
function Recall({ machine, onClose }: { machine: Machine; onClose: () => void }) {
  const run = async (show: Show, signal: AbortSignal): Promise<void> => {
    await api.recall(machine.name, follow(show), signal);
    tell(`${machine.name} is back.`);
  };
  return (
    <TaskDialog title={`Recall ${machine.name}`} action="Recall" label="recall" run={run} onClose={onClose}>
      {() => <p class="hint">It comes back from {machine.moves?.node ?? "the other node"} with what it has changed there, in the size that it had here.</p>}
    </TaskDialog>
  );
}

/** What has a machine go on on a paired node, and come back; nothing if this node is paired with none. */
export function Offload({ machine }: { machine: Machine }) {
  const paired = usePaired();
  const [open, setOpen] = useState<"offload" | "recall" | null>(null);
  const lent = isLent(machine);
  // a parked machine is woken for it
  const lendable = paired.length > 0 && (isAwake(machine.status) || machine.status === "parked");
  const close = (): void => setOpen(null);
  return (
    <>
      {(lent || lendable) && (
        <p class="buttons">
          <button onClick={() => setOpen(lent ? "recall" : "offload")}>
            <Icon name="cloud" /> {lent ? "Recall" : "Offload"}
          </button>
        </p>
      )}
      {open === "offload" && <Lend machine={machine} paired={paired} onClose={close} />}
      {open === "recall" && <Recall machine={machine} onClose={close} />}
    </>
  );
}
