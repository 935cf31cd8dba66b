/**
 * xterm.js on a machine's serial console; only loaded when a console is opened. What the guest writes reaches nothing but the
 * terminal's own grid of characters: it makes no link, sets no title and no clipboard.
 */

import "@xterm/xterm/css/xterm.css";
import { FitAddon } from "@xterm/addon-fit";
import { Terminal as Xterm } from "@xterm/xterm";
import { terminalAddress } from "./api";

/** Lines that can be scrolled back to; each has at most some hundred characters. */
const SCROLLBACK_LINES = 5000;
/** Most bytes of the guest that wait for the terminal. Beyond, the socket is closed, and opened again with the end of what is kept. */
const WAITING_BYTES_MAX = 4 << 20;

/**
 * xterm.js writes its colours and measures into `<style>` elements, which the page's policy refuses, as it should: a style sheet
 * that a script constructs is allowed. So it gets elements that do nothing but pass their text on to such a sheet.
 */
function sheetElement(): HTMLElement {
  const sheet = new CSSStyleSheet();
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  const element = create("template");
  Object.defineProperty(element, "textContent", { set: (text: string) => sheet.replaceSync(text) });
  element.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((one) => one !== sheet);
    Element.prototype.remove.call(element);
  };
  return element;
}

const create = document.createElement.bind(document) as (tag: string, options?: ElementCreationOptions) => HTMLElement;
document.createElement = ((tag: string, options?: ElementCreationOptions): HTMLElement =>
  tag === "style" ? sheetElement() : create(tag, options)) as typeof document.createElement;

/** The same for the colours of single letters, which it sets as attributes: what a script sets as properties is allowed. */
const setAttribute = Element.prototype.setAttribute;
Element.prototype.setAttribute = function (this: Element, name: string, value: string): void {
  if (name === "style" && this instanceof HTMLElement) this.style.cssText = value;
  else setAttribute.call(this, name, value);
};

export interface Console {
  focus: () => void;
  /** Types the command with which a guest's shell learns the terminal's size: a serial line does not tell it. */
  tellSize: () => void;
  sendEscape: () => void;
  close: () => void;
}

export interface ConsoleEvents {
  onConnect: () => void;
  onDisconnect: () => void;
  /** The key that leaves the console was pressed. */
  onLeave: () => void;
  /** Something was typed. */
  onType: () => void;
  /** Whether another program has the line, so that nothing can be typed. */
  onTaken: (taken: boolean) => void;
  escapeToGuest: () => boolean;
}

interface Said {
  /** Bytes that follow and that the guest wrote earlier. */
  earlier_bytes?: number;
  taken?: boolean;
}

export function openConsole(machine: string, place: HTMLElement, events: ConsoleEvents): Console {
  const term = new Xterm({
    scrollback: SCROLLBACK_LINES,
    fontSize: 14,
    fontFamily: 'ui-monospace, "SF Mono", Menlo, "Liberation Mono", "DejaVu Sans Mono", monospace',
    theme: { background: "#05080b", foreground: "#e6edf3", cursor: "#74c4ee", selectionBackground: "#2a5a78" },
    // a link of a guest is text like all else
    linkHandler: { activate: () => undefined },
    // a guest chooses colours, not whether they can be read
    minimumContrastRatio: 4.5,
  });
  const fit = new FitAddon();
  term.loadAddon(fit);
  term.open(place);
  fit.fit();
  const resized = new ResizeObserver(() => fit.fit());
  resized.observe(place);

  const socket = new WebSocket(terminalAddress(machine));
  socket.binaryType = "arraybuffer";
  const encoder = new TextEncoder();
  let earlier = 0;
  let waiting = 0;
  const send = (text: string): void => {
    if (socket.readyState === WebSocket.OPEN) socket.send(encoder.encode(text));
  };
  socket.onopen = () => events.onConnect();
  socket.onclose = () => events.onDisconnect();
  socket.onmessage = (message: MessageEvent<ArrayBuffer | string>) => {
    if (typeof message.data === "string") {
      const said = JSON.parse(message.data) as Said;
      earlier = said.earlier_bytes ?? earlier;
      if (said.taken !== undefined) events.onTaken(said.taken);
      return;
    }
    const bytes = new Uint8Array(message.data);
    waiting += bytes.length;
    if (waiting > WAITING_BYTES_MAX) return socket.close();
    term.write(bytes, () => {
      waiting -= bytes.length;
      earlier = Math.max(0, earlier - bytes.length);
    });
  };
  // A guest may ask the terminal something (where is the cursor?). One answers: the terminal that has the keyboard, and not to
  // questions of long ago.
  term.onData((text) => {
    if (earlier > 0 || !place.contains(document.activeElement)) return;
    events.onType();
    send(text);
  });
  term.attachCustomKeyEventHandler((event) => {
    if (event.key !== "Escape" || event.shiftKey !== events.escapeToGuest()) {
      // the other one of the two is Esc for the guest
      if (event.key === "Escape" && event.type === "keydown" && event.shiftKey) {
        send("\x1b");
        return false;
      }
      return true;
    }
    event.preventDefault();
    event.stopPropagation();
    if (event.type === "keydown") events.onLeave();
    return false;
  });
  return {
    focus: () => term.focus(),
    tellSize: () => send(`stty rows ${term.rows} cols ${term.cols}\r`),
    sendEscape: () => send("\x1b"),
    close: () => {
      resized.disconnect();
      socket.onclose = null;
      socket.close();
      term.dispose();
    },
  };
}
