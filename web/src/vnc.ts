/** noVNC, which is only loaded when a screen is opened, and what is added to it: who gets the Esc key. */

import type RFB from "@novnc/novnc";
import { vncAddress } from "./api";

export interface Screen {
  focus: () => void;
  sendCtrlAltDel: () => void;
  sendEscape: () => void;
  close: () => void;
}

export interface ScreenEvents {
  onConnect: () => void;
  onDisconnect: () => void;
  /** The key that leaves the screen was pressed. */
  onLeave: () => void;
  /** Whether a bare Esc goes to the guest. */
  escapeToGuest: () => boolean;
}

const XK_ESCAPE = 0xff1b;

export async function openScreen(machine: string, place: HTMLElement, events: ScreenEvents): Promise<Screen> {
  const { default: Client } = (await import("@novnc/novnc")) as { default: typeof RFB };
  const client = new Client(place, vncAddress(machine), { shared: true });
  client.scaleViewport = true;
  client.focusOnClick = true;
  client.background = "transparent";
  client.addEventListener("connect", events.onConnect);
  client.addEventListener("disconnect", events.onDisconnect);
  const escape = (event: KeyboardEvent): void => {
    if (event.key !== "Escape") return;
    event.preventDefault();
    event.stopImmediatePropagation();
    if (event.type !== "keydown") return;
    if (event.shiftKey === events.escapeToGuest()) events.onLeave();
    else client.sendKey(XK_ESCAPE, "Escape");
  };
  // noVNC listens on its canvas, inside of this place
  place.addEventListener("keydown", escape, true);
  place.addEventListener("keyup", escape, true);
  return {
    focus: () => client.focus(),
    sendCtrlAltDel: () => client.sendCtrlAltDel(),
    sendEscape: () => client.sendKey(XK_ESCAPE, "Escape"),
    close: () => {
      place.removeEventListener("keydown", escape, true);
      place.removeEventListener("keyup", escape, true);
      client.removeEventListener("disconnect", events.onDisconnect);
      client.disconnect();
    },
  };
}
