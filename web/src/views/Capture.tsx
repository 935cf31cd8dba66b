import { useState } from "preact/hooks";
import { api, type Machine, type Step } from "../api";
import { duration } from "../format";
import { progressOf } from "../parts/Meter";
import { tell } from "../parts/notices";
import { begun, TaskDialog, type Show } from "../parts/TaskDialog";

/** A machine becomes an image, and goes on. */
export function Capture(props: { machine: Machine; onClose: () => void; onDone?: () => void }) {
  const { machine, onClose } = props;
  const base = machine.image_name.split("/").pop()?.split(":")[0] ?? machine.name;
  const [name, setName] = useState(`${base}:${machine.name}`.slice(0, 100));
  const run = async (show: Show, signal: AbortSignal): Promise<void> => {
    const step = (step: Step): void => {
      const next = progressOf(step);
      if (next) show(next);
      // what follows a store is the rehearsal, which takes some seconds and counts nothing
      if (step.event === "stage" && step.name === "store") show(begun("rehearsing a resume"));
    };
    const outcome = await api.capture(machine.name, name.trim(), step, signal);
    tell(`${name} is captured; ${machine.name} stood still for ${duration(outcome.pause_ms ?? 0)}.`);
    props.onDone?.();
  };
  return (
    <TaskDialog title={`Capture ${machine.name}`} action="Capture" label="capture" run={run} onClose={onClose}>
      {() => (
        <>
          <label>
            Name of the image
            <input value={name} required maxLength={200} onInput={(event) => setName(event.currentTarget.value)} data-first />
          </label>
          <p class="hint">Memory, disks and screen as they are now. The machine goes on.</p>
        </>
      )}
    </TaskDialog>
  );
}
