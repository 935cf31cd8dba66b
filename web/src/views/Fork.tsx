import { useState } from "preact/hooks";
import { api, type Machine } from "../api";
import { duration } from "../format";
import { complain, tell } from "../parts/notices";
import { begun, TaskDialog, type Show } from "../parts/TaskDialog";

/** As many as a person looks at; a program asks for more. */
const CLONES_MAX = 32;

/** A machine becomes itself and some clones of this moment. */
export function Fork({ machine, onClose }: { machine: Machine; onClose: () => void }) {
  // as typed: a field that is being emptied says nothing yet
  const [clones, setClones] = useState("1");
  const run = async (show: Show, signal: AbortSignal): Promise<void> => {
    const outcome = await api.fork(machine.name, Number(clones), (step) => step.event === "stage" && show(begun(step.name)), signal);
    const all = outcome.fork?.clones ?? [];
    const names = all.filter((clone) => clone.state === "running").map((clone) => clone.name);
    if (names.length > 0)
      tell(`${names.join(", ")} run${names.length === 1 ? "s" : ""}; ${machine.name} stood still for ${duration(outcome.pause_ms ?? 0)}.`);
    const lost = all.find((clone) => clone.state !== "running");
    if (lost) complain(new Error(`${all.length - names.length} of ${all.length} clones do not run: ${lost.detail ?? "no room"}`));
  };
  return (
    <TaskDialog title={`Fork ${machine.name}`} action="Fork" label="fork" run={run} onClose={onClose}>
      {() => (
        <>
          <label>
            Clones
            <input
              type="number"
              value={clones}
              required
              min={1}
              max={CLONES_MAX}
              onInput={(event) => setClones(event.currentTarget.value)}
              data-first
            />
          </label>
          <p class="hint">Each goes on from this moment, with memory and disks of its own. The machine goes on, too.</p>
        </>
      )}
    </TaskDialog>
  );
}
