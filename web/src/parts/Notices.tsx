import { Icon } from "./Icon";
import { dismiss, useNotices } from "./notices";

export function Notices() {
  const notices = useNotices();
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
