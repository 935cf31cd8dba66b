/** Arrow keys go from picture to picture, as one sees them: over machines and images alike. */

const BETWEEN = "input, textarea, select, dialog, .screen, .console, [role=toolbar], [role=tablist]";

interface Place {
  card: HTMLElement;
  top: number;
  middle: number;
}

function places(): Place[] {
  return [...document.querySelectorAll<HTMLElement>(".card-open")].map((card) => {
    const box = card.getBoundingClientRect();
    return { card, top: Math.round(box.top), middle: box.left + box.width / 2 };
  });
}

/** The picture above or below: of the next row, the one that is nearest to the side. */
function beyond(all: Place[], from: Place, down: boolean): Place | undefined {
  const rows = all.filter((one) => (down ? one.top > from.top : one.top < from.top));
  const tops = rows.map((one) => one.top);
  const top = down ? Math.min(...tops) : Math.max(...tops);
  const aside = (one: Place): number => Math.abs(one.middle - from.middle);
  return rows.filter((one) => one.top === top).sort((a, b) => aside(a) - aside(b))[0];
}

export function walk(event: KeyboardEvent): void {
  const keys = ["ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp", "Home", "End"];
  if (!keys.includes(event.key) || event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) return;
  const target = event.target instanceof HTMLElement ? event.target : document.body;
  if (target.closest(BETWEEN) || document.querySelector("dialog[open]")) return;
  const all = places();
  // from a button of a card it goes on from that card; from nowhere, to the first
  const here = target.closest(".card")?.querySelector(".card-open");
  const at = all.findIndex((one) => one.card === here);
  const from = all[at];
  let next = all[0];
  if (event.key === "End") next = all.at(-1);
  else if (from && event.key === "ArrowRight") next = all[at + 1];
  else if (from && event.key === "ArrowLeft") next = all[at - 1];
  else if (from && event.key !== "Home") next = beyond(all, from, event.key === "ArrowDown");
  if (!next) return;
  event.preventDefault();
  next.card.focus();
}

/** Within a bar or a row of tabs: to the button beside. */
export function along(event: KeyboardEvent): void {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step || !(event.target instanceof HTMLElement)) return;
  const buttons = [...(event.currentTarget as HTMLElement).querySelectorAll<HTMLElement>("button:not(:disabled), a[href]")];
  const at = buttons.indexOf(event.target);
  const next = at < 0 ? undefined : buttons[(at + step + buttons.length) % buttons.length];
  if (!next) return;
  event.preventDefault();
  event.stopPropagation();
  next.focus();
}
