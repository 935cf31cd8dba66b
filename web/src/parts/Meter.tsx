import type { Step } from "../api";
import { bytes } from "../format";

/** How far something is. `total` 0 means that nobody knows. */
export interface Progress {
  label: string;
  done: number;
  total: number;
  unit: string;
}

export function progressOf(step: Step): Progress | null {
  if (step.event !== "progress") return null;
  return { label: step.name, done: step.done, total: step.total, unit: step.unit };
}

function told({ done, total, unit }: Progress): string {
  if (unit !== "bytes") return total > 0 ? `${Math.round((100 * done) / total)} %` : "";
  return total > 0 ? `${bytes(done)} of ${bytes(total)}` : bytes(done);
}

export function Meter({ progress }: { progress: Progress }) {
  const { label, done, total } = progress;
  return (
    <div class="meter">
      <div class="meter-text">
        <span>{label}</span>
        <span class="figure">{told(progress)}</span>
      </div>
      {total > 0 ? <progress value={done} max={total} aria-label={label} /> : <progress aria-label={label} />}
    </div>
  );
}
