import type { RefObject } from "preact";
import { Icon } from "./Icon";
import { dismiss, useForemost, useNotices } from "./notices";

/** The notices, in front of whatever is in front: `layer` is the dialog in which these stand, none for the page itself. */
export function Notices({ layer = null }: { layer?: RefObject<HTMLElement> | null }) {
  const notices = useNotices();
  if (useForemost() !== layer) return null;
  return (
    <div class="notices">
      <div role="status" aria-live="polite">
        {notices.filter((notice) => !notice.error).map((notice) => (
          <p key={notice.id} class="notice">{notice.text}</p>
        ))}
      </div>
      <div role="alert">
        {notices.filter((notice) => notice.error).map((notice) => (
          <div key={notice.id} class="notice error">
            <p>
              {notice.text}
              {notice.fix && <span class="fix">{notice.fix}</span>}
            </p>
            <button class="quiet" aria-label="Close this message" onClick={() => dismiss(notice.id)}>
              <Icon name="close" />
            </button>
          </div>
        ))}
      </div>
    </div>
  );
}
