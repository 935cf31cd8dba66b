import type { Machine, Shares, Stream } from "../api";
import { bytes, rate } from "../format";

const CHUNK_BYTES = 4096;

/** As in a video player: what of the expected has arrived. Without a plan there is nothing to show. */
export function Buffered({ stream, machine }: { stream: Stream | null; machine: Machine | null }) {
  if (!stream || stream.planned_chunks === 0) {
    const local = machine !== null && machine.sources.length === 0;
    return <div class={`track ${local ? "whole" : "idle"}`} aria-hidden="true" />;
  }
  const part = Math.min(1, stream.buffered_chunks / stream.planned_chunks);
  const told = `${bytes(stream.buffered_chunks * CHUNK_BYTES)} of ${bytes(stream.planned_chunks * CHUNK_BYTES)}`;
  return (
    <div
      class="track"
      role="progressbar"
      aria-label="Buffered"
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={Math.round(part * 100)}
      aria-valuetext={told}
      title={`Buffered: ${told}`}
    >
      <div class="track-fill" style={{ width: `${(part * 100).toFixed(2)}%` }} />
    </div>
  );
}

/** Live figures: of the stream, or what the machine itself counted if the node tells no more. */
export function Figures(props: { stream: Stream | null; machine: Machine | null; shares: Shares | null }) {
  const { stream, machine, shares } = props;
  if (!machine) return null;
  const figures: [string, string, string][] = stream
    ? [
        ["Rate", rate(stream.rate_bytes_s), "what arrives at the moment"],
        ["Misses", String(stream.misses), "touches that had to wait for the network"],
        ["Fetch ratio", stream.fetch_ratio.toFixed(2), "fetched / touched: 1 is no waste"],
        ["Saved", bytes(stream.saved_bytes), "part of the image that never had to be fetched"],
      ]
    : [
        ["Misses", String(machine.stats.misses), "touches that had to wait for the network"],
        ["Fetched", bytes(machine.stats.wire_bytes), "what has arrived so far"],
      ];
  if (shares?.steal_pct !== undefined)
    figures.push(["Steal", `${shares.steal_pct.toFixed(0)} %`, "part of the time that its CPUs wanted to run in which they waited for a core"]);
  if (shares?.stacking_pct !== undefined)
    figures.push(["Stacked", `${shares.stacking_pct.toFixed(0)} %`, "how often its CPUs shared a core without need"]);
  if (shares?.lag_ms !== undefined)
    figures.push(["Lag", `${shares.lag_ms.toFixed(0)} ms`, "how much less the CPU that is furthest behind has run than their mean"]);
  return (
    <dl class="figures">
      {figures.map(([name, value, what]) => (
        <div key={name} title={what}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}
