/** Figures for people. Sizes as the command line writes them (`size_text` in crates/api): powers of 1024, one decimal. */

const UNITS = ["KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(count: number): string {
  if (count < 1024) return `${Math.round(count)} B`;
  let value = count / 1024;
  let unit = 0;
  // 1023.96 would be shown as 1024.0
  while (value >= 1023.95 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value.toFixed(1)} ${UNITS[unit] ?? ""}`;
}

/** Bits per second, as links are sold. */
export function rate(bytesPerSecond: number): string {
  const bits = bytesPerSecond * 8;
  if (bits < 1e3) return "0 kbit/s";
  if (bits < 1e6) return `${Math.round(bits / 1e3)} kbit/s`;
  return bits < 1e9 ? `${(bits / 1e6).toFixed(1)} Mbit/s` : `${(bits / 1e9).toFixed(1)} Gbit/s`;
}

export function duration(ms: number): string {
  if (ms < 950) return `${Math.max(10, Math.round(ms / 10) * 10)} ms`;
  const seconds = ms / 1000;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  return `${Math.round(seconds / 60)} min`;
}

const STEPS: readonly [number, Intl.RelativeTimeFormatUnit][] = [
  [60, "second"],
  [60, "minute"],
  [24, "hour"],
  [30, "day"],
  [12, "month"],
  [Infinity, "year"],
];

const words = new Intl.RelativeTimeFormat("en", { numeric: "auto" });

export function ago(unixSeconds: number, nowMs = Date.now()): string {
  let value = Math.max(0, nowMs / 1000 - unixSeconds);
  for (const [size, unit] of STEPS) {
    if (value < size) return unit === "second" ? "just now" : words.format(-Math.floor(value), unit);
    value /= size;
  }
  return "";
}

/** An estimate that does not flicker: nobody needs to hear 7.3, 7.1, 6.9. */
export function estimate(seconds: number): string {
  if (seconds < 1.5) return "about a second";
  for (const step of [2, 3, 5, 8, 10, 15, 20, 30, 45, 60]) if (seconds <= step) return `about ${step} seconds`;
  return `about ${Math.ceil(seconds / 60)} minutes`;
}

/** `name:tag` as shown: `latest` goes without saying. */
export const shortName = (name: string): string => name.replace(/:latest$/, "");

export function titleOf(image: { id: string; names: string[] }): string {
  const first = image.names[0];
  return first ? shortName(first) : image.id.slice(0, 12);
}

/** Whether each word of a search is found in one of the texts. */
export function matches(search: string, texts: string[]): boolean {
  const text = texts.join(" ").toLowerCase();
  return search.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}
