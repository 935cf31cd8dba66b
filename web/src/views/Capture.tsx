import { useRef, useState } from "preact/hooks";
import { api, type Machine, type Step } from "../api";
import { duration } from "../format";
import { Dialog } from "../parts/Dialog";
import { Meter, progressOf, type Progress } from "../parts/Meter";
import { complain, tell } from "../parts/notices";

/** A machine becomes an image, and goes on. */
export function Capture({ machine, onClose }: { machine: Machine; onClose: () => void }) {
  const base = machine.image_name.split("/").pop()?.split(":")[0] ?? machine.name;
  const [name, setName] = useState(`${base}:${machine.name}`.slice(0, 100));
  const [progress, setProgress] = useState<Progress | null>(null);
  const running = useRef<AbortController | null>(null);
  const close = (): void => {
    running.current?.abort();
    onClose();
  };
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    running.current = new AbortController();
    setProgress({ label: "capture", done: 0, total: 0, unit: "" });
    const step = (step: Step): void => {
      const next = progressOf(step);
      if (next) setProgress(next);
      // what follows a store is the rehearsal, which takes some seconds and counts nothing
      if (step.event === "stage" && step.name === "store")
        setProgress({ label: "rehearsing a resume", done: 0, total: 0, unit: "" });
    };
    try {
      const outcome = await api.capture(machine.name, name.trim(), step, running.current.signal);
      tell(`${name} is captured; ${machine.name} stood still for ${duration(outcome.pause_ms ?? 0)}.`);
      onClose();
    } catch (error) {
      setProgress(null);
      complain(error);
    }
  };
  return (
    <Dialog title={`Capture ${machine.name}`} onClose={close}>
      <form onSubmit={(event) => void submit(event)}>
        <label>
          Name of the image
          <input value={name} required maxLength={200} onInput={(event) => setName(event.currentTarget.value)} autofocus />
        </label>
        <p class="hint">Memory, disks and screen as they are now. The machine goes on.</p>
        {progress && <Meter progress={progress} />}
        <footer class="dialog-foot">
          <button type="button" onClick={close}>Cancel</button>
          <button class="primary" disabled={progress !== null}>Capture</button>
        </footer>
      </form>
    </Dialog>
  );
}
