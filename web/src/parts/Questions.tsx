import { Dialog } from "./Dialog";
import { useQuestion } from "./questions";

/** The question that is asked at the moment, if any. The focus is on what loses nothing. */
export function Questions() {
  const question = useQuestion();
  if (!question) return null;
  const { title, text, choices, answer } = question;
  return (
    <Dialog key={title} title={title} onClose={() => answer(null)}>
      <p class="wrap">{text}</p>
      <div class="choices">
        {choices.map((choice) => (
          <button
            key={choice.id}
            type="button"
            class={choice.loses ? "danger" : ""}
            aria-description={choice.hint}
            onClick={() => answer(choice.id)}
          >
            <span>{choice.label}</span>
            {choice.hint && <span class="hint" aria-hidden="true">{choice.hint}</span>}
          </button>
        ))}
        <button type="button" data-first onClick={() => answer(null)}>Cancel</button>
      </div>
    </Dialog>
  );
}
