import { useEffect, useState } from "preact/hooks";
import { api, Refusal, type Problem, type Step } from "../api";
import { duration } from "../format";
import { go } from "../live";
import { Icon } from "../parts/Icon";
import { Meter, progressOf, type Progress } from "../parts/Meter";
import { tell as say } from "../parts/notices";
import { Thumb } from "../parts/Thumb";

/** An image on its way to a machine. */
export interface Wish {
  /** Name, id or address. */
  image: string;
  title: string;
  thumbnail: string | null;
  seed: string;
  /** It is to be a machine of its own: nothing of whom it was captured from. */
  own?: boolean;
}

interface Stage {
  name: string;
  ms: number;
}

/** From the click to the screen: the picture at the capture, and what is being done. */
export function Launch({ wish, onCancel }: { wish: Wish; onCancel: () => void }) {
  const [stages, setStages] = useState<Stage[]>([]);
  const [progress, setProgress] = useState<Progress | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [attempt, setAttempt] = useState(0);
  useEffect(() => {
    const ended = new AbortController();
    setStages([]);
    setProblem(null);
    const tell = (step: Step): void => {
      if (step.event === "stage") setStages((before) => [...before, { name: step.name, ms: step.ms }]);
      const progress = progressOf(step);
      if (progress) setProgress(progress);
      // what is not as one may take it to be, such as whose name it has
      if (step.event === "note") say(step.message);
    };
    api.run(wish.image, wish.own ?? false, tell, ended.signal).then(
      (outcome) => {
        if (outcome.machine) go(`machine/${encodeURIComponent(outcome.machine.name)}`);
      },
      (error: unknown) => {
        if (ended.signal.aborted) return;
        const failed = { code: "failed", message: String(error), fix: "is the node still running?" };
        setProblem(error instanceof Refusal ? error.problem : failed);
      },
    );
    return () => ended.abort();
  }, [wish.image, wish.own, attempt]);
  useEffect(() => {
    const key = (event: KeyboardEvent): void => {
      if (event.key === "Escape") onCancel();
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, [onCancel]);
  return (
    <main class="theatre" aria-labelledby="launch-title">
      <div class="stage">
        <div class="poster"><Thumb src={wish.thumbnail} seed={wish.seed} /></div>
        <div class="veil">
          <div class="veil-box" role="status" aria-live="polite">
            {!problem && <span class="spinner" aria-hidden="true" />}
            <h1 id="launch-title">{problem ? `${wish.title} did not start` : `Starting ${wish.title}`}</h1>
            {problem && <p>{problem.message}</p>}
            {problem?.fix && <p class="fix">{problem.fix}</p>}
            {!problem && progress && <Meter progress={progress} />}
            {!problem && (
              <ol class="stages" aria-hidden="true">
                {stages.slice(-4).map((stage, index) => (
                  <li key={`${stage.name}${index}`}>
                    <span>{stage.name}</span>
                    <span class="figure">{duration(stage.ms)}</span>
                  </li>
                ))}
              </ol>
            )}
          </div>
        </div>
      </div>
      <div class="bar">
        <button class="tool" onClick={onCancel}>
          <Icon name="back" /> {problem ? "Back" : "Cancel"}
        </button>
        <span class="grow" />
        {problem && (
          <button class="tool" onClick={() => setAttempt(attempt + 1)}>
            <Icon name="restart" /> Try again
          </button>
        )}
      </div>
    </main>
  );
}
