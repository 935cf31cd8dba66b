import { useState } from "preact/hooks";
import { api, upload, type Outcome, type Step, type Upload } from "../api";
import { bytes } from "../format";
import { progressOf } from "../parts/Meter";
import { tell } from "../parts/notices";
import { begun, TaskDialog, type Show } from "../parts/TaskDialog";

const MIB = 2 ** 20;

type Way = "file" | "address";

interface Choice {
  disk: File | null;
  kernel: File | null;
  initrd: File | null;
}

/** An image's name from a file's: `Debian 12.qcow2` becomes `debian-12`. */
export function nameFrom(file: string): string {
  const stem = file.replace(/\.(qcow2|raw|img|vmdk|vdi|vhdx?|iso)$/i, "");
  return stem.toLowerCase().replace(/[^a-z0-9._-]+/g, "-").replace(/^[^a-z0-9]+|[^a-z0-9]+$/g, "");
}

/** New images: a disk of this computer, or one that a hub has. */
export function Add(props: { onClose: () => void; onRun: (address: string) => void }) {
  const [way, setWay] = useState<Way>("file");
  const [choice, setChoice] = useState<Choice>({ disk: null, kernel: null, initrd: null });
  const [name, setName] = useState("");
  // as typed: a field that is being emptied says nothing yet
  const [memory, setMemory] = useState("1024");
  const [cmdline, setCmdline] = useState("");
  const [agent, setAgent] = useState(false);
  const [address, setAddress] = useState("");

  const pick = (what: keyof Choice, file: File | null): void => {
    setChoice({ ...choice, [what]: file });
    if (file && !name) setName(nameFrom(file.name));
  };
  const sendAll = async (show: Show, step: (step: Step) => void, signal: AbortSignal): Promise<Outcome> => {
    const sent: Upload[] = [];
    const send = async (what: string, file: File | null): Promise<string | null> => {
      if (!file) return null;
      const label = `sending ${what}`;
      const one = await upload(
        file,
        (done) => show({ label, done, total: file.size, unit: "bytes" }),
        signal,
      );
      sent.push(one);
      return one.path;
    };
    try {
      const disk = await send("disk", choice.disk);
      const kernel = await send("kernel", choice.kernel);
      const initrd = await send("initial ramdisk", choice.initrd);
      show(begun("import"));
      const request = {
        disks: disk ? [disk] : [],
        kernel,
        initrd,
        cmdline: cmdline.trim() || null,
        name: name.trim() || null,
        memory_bytes: Number(memory) * MIB,
        agent: agent && disk ? "" : null,
      };
      return await api.import(request, step, signal);
    } finally {
      for (const one of sent) void api.dropUpload(one.id).catch(() => undefined);
    }
  };
  const run = async (show: Show, signal: AbortSignal): Promise<void> => {
    const step = (step: Step): void => {
      const next = progressOf(step);
      if (next) show(next);
    };
    const outcome = way === "file" ? await sendAll(show, step, signal) : await api.pull(address.trim(), step, signal);
    const image = outcome.image;
    tell(image ? `${image.names[0] ?? image.id.slice(0, 12)} is here: ${bytes(image.stored_bytes)}.` : "The image is here.");
  };
  const file = (what: keyof Choice, label: string, required: boolean, busy: boolean) => (
    <label class="file">
      {label}
      <input type="file" data-first={what === "disk"} required={required} disabled={busy} onChange={(event) => pick(what, event.currentTarget.files?.[0] ?? null)} />
      {choice[what] && <span class="hint">{bytes(choice[what].size)}</span>}
    </label>
  );
  const runNow = (busy: boolean) =>
    way === "address" && (
      <button type="button" disabled={busy || !address.trim()} onClick={() => props.onRun(address.trim())}>Run now</button>
    );
  return (
    <TaskDialog
      title="Add an image"
      action={way === "file" ? "Import" : "Fetch"}
      label="starting"
      run={run}
      buttons={runNow}
      onClose={props.onClose}
    >
      {(busy) => (
        <>
          <div class="choice" role="group" aria-label="From where">
            <button type="button" aria-pressed={way === "file"} disabled={busy} onClick={() => setWay("file")}>From a file</button>
            <button type="button" aria-pressed={way === "address"} disabled={busy} onClick={() => setWay("address")}>From an address</button>
          </div>
          {way === "file" ? (
            <>
              {file("disk", "Disk (qcow2, raw, vmdk, vdi)", choice.kernel === null, busy)}
              <div class="row">
                <label>
                  Name
                  <input value={name} required disabled={busy} placeholder="debian" onInput={(event) => setName(event.currentTarget.value)} />
                </label>
                <label>
                  Memory, MiB
                  <input type="number" min={64} step={2} required value={memory} disabled={busy} onInput={(event) => setMemory(event.currentTarget.value)} />
                </label>
              </div>
              <label class="check">
                <input type="checkbox" checked={agent} disabled={busy || !choice.disk} onChange={(event) => setAgent(event.currentTarget.checked)} />
                <span>
                  Put floe’s agent into it
                  <span class="hint">For commands and copies in the guest, clones, and its clock: a Linux on ext4 that systemd, busybox or System V starts.</span>
                </span>
              </label>
              <details>
                <summary>With a kernel of its own</summary>
                {file("kernel", "Kernel", false, busy)}
                {file("initrd", "Initial ramdisk", false, busy)}
                <label>
                  Kernel command line
                  <input value={cmdline} disabled={busy} placeholder="console=ttyS0 root=/dev/vda rw" onInput={(event) => setCmdline(event.currentTarget.value)} />
                </label>
              </details>
            </>
          ) : (
            <>
              <label>
                Address of the image
                <input value={address} required disabled={busy} placeholder="https://hub.example/debian-booted" onInput={(event) => setAddress(event.currentTarget.value)} />
              </label>
              <p class="hint">“Run now” starts it at once and streams what it touches; “Fetch” copies all of it first.</p>
            </>
          )}
        </>
      )}
    </TaskDialog>
  );
}
