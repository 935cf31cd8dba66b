declare module "@novnc/novnc" {
  /** What of noVNC's client the page uses; its own documentation is docs/API.md of the package. */
  export default class RFB extends EventTarget {
    constructor(target: HTMLElement, url: string, options?: { shared?: boolean });
    scaleViewport: boolean;
    focusOnClick: boolean;
    background: string;
    viewOnly: boolean;
    focus(): void;
    blur(): void;
    disconnect(): void;
    sendCtrlAltDel(): void;
    sendKey(keysym: number, code: string | null, down?: boolean): void;
  }
}
