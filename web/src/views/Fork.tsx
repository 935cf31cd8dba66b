import { useRef, useState } from "preact/hooks";
import { api, type Machine } from "../api";
import { duration } from "../format";
import { Dialog } from "../parts/Dialog";
import { Meter } from "../parts/Meter";
import { complain, tell } from "../parts/notices";

/** As many as a person looks at; a program asks for more. */
const CLONES_MAX = 32;

/** A machine becomes itself and some clones of this moment. */
export function Fork({ machine, onClose }: { machine: Machine; onClose: () => void }) {
  const [clones, setClones] = useState(1);
  const [stage, setStage] = useState<string | null>(null);
  const running = useRef<AbortController | null>(null);
  const close = (): void => {
    running.current?.abort();
    onClose();
  };
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    running.current = new AbortController();
    setStage("fork");
    try {
      const outcome = await api.fork(
        machine.name,
        clones,
        (step) => step.event === "stage" && setStage(step.name),
        running.current.signal,
      );
      const all = outcome.fork?.clones ?? [];
      const names = all.filter((clone) => clone.state === "running").map((clone) => clone.name);
      if (names.length > 0)
        tell(`${names.join(", ")} run${names.length === 1 ? "s" : ""}; ${machine.name} stood still for ${duration(outcome.pause_ms ?? 0)}.`);
      const lost = all.find((clone) => clone.state !== "running");
      if (lost) complain(new Error(`${all.length - names.length} of ${all.length} clones do not run: ${lost.detail ?? "no room"}`));
      onClose();
    } catch (error) {
      setStage(null);
      complain(error);
    }
  };
  return (
    <Dialog title={`Fork ${machine.name}`} onClose={close}>
      <form onSubmit={(event) => void submit(event)}>
        <label>
          Clones
          <input
            type="number"
            value={clones}
            required
            min={1}
            max={CLONES_MAX}
            onInput={(event) => setClones(event.currentTarget.valueAsNumber || 1)}
            autofocus
          />
        </label>
        <p class="hint">Each goes on from this moment, with memory and disks of its own. The machine goes on, too.</p>
        {stage && <Meter progress={{ label: stage, done: 0, total: 0, unit: "" }} />}
        <footer class="dialog-foot">
          <button type="button" onClick={close}>Cancel</button>
          <button class="primary" disabled={stage !== null}>Fork</button>
        </footer>
      </form>
    </Dialog>
  );
}
