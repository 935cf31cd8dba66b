import type { MutableRef } from "preact/hooks";

export type Connection = "connecting" | "connected" | "lost";

/** What can be done with an open screen or console from outside of it. */
export interface Opened {
  focus: () => void;
  sendCtrlAltDel?: () => void;
  tellSize?: () => void;
}

/** What screen and console have in common. */
export interface Pane {
  name: string;
  /** Whether there is something to be seen, here or where it is lent to. */
  awake: boolean;
  /** The node that shows it, if that is not this one: a change means another connection. */
  at: string;
  /** Whether a bare Esc goes to the guest; with Shift it does the other thing. */
  escapeToGuest: boolean;
  onConnection: (connection: Connection) => void;
  onLeave: () => void;
  /** The user has typed something here. */
  onType: () => void;
  handle: MutableRef<Opened | null>;
}
