import type { ComponentChildren } from "preact";
import { useMemo, useState } from "preact/hooks";
import { Thumb } from "../parts/Thumb";
import { matches, shortName } from "../format";

/** What the catalogue shows of an image, of a node's or of a hub's. */
export interface Entry {
  id: string;
  title: string;
  names: string[];
  labels: string[];
  thumbnail: string | null;
  /** Short facts below the title. */
  facts: string[];
  /** Shown on the picture. */
  badge?: string;
}

/** Tags of an entry: what stands behind the colon of its names, and its labels. */
function tagsOf(entry: Entry): string[] {
  const tags = entry.names.map((name) => name.split(":")[1] ?? "latest").filter((tag) => tag !== "latest");
  return [...new Set([...tags, ...entry.labels])];
}

function fits(entry: Entry, search: string, tag: string | null): boolean {
  if (tag && !tagsOf(entry).includes(tag)) return false;
  return matches(search, [entry.title, ...entry.names, ...entry.labels, entry.id]);
}

/** Most tags that are offered; more are found by the search. */
const TAGS_MAX = 12;

function commonTags(entries: Entry[]): string[] {
  const counts = new Map<string, number>();
  for (const tag of entries.flatMap(tagsOf)) counts.set(tag, (counts.get(tag) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1] || a[0].localeCompare(b[0])).slice(0, TAGS_MAX).map(([tag]) => tag);
}

export function Catalogue(props: {
  entries: Entry[] | null;
  search: string;
  /** What a click on a picture does, in a word: `Start`. */
  verb: string;
  onOpen: (entry: Entry) => void;
  /** What a click on a title does: it starts nothing. */
  onTitle: (entry: Entry) => void;
  /** More buttons of a card. */
  actions?: (entry: Entry) => ComponentChildren;
  empty: ComponentChildren;
}) {
  const { entries, search } = props;
  const [tag, setTag] = useState<string | null>(null);
  const tags = useMemo(() => commonTags(entries ?? []), [entries]);
  const shown = (entries ?? []).filter((entry) => fits(entry, search, tag));
  const count = `${shown.length} ${shown.length === 1 ? "image" : "images"}`;
  return (
    <section aria-labelledby="images-title">
      <div class="section-head">
        <h2 id="images-title">Images</h2>
        <p class="count" role="status">{entries && entries.length > 0 ? count : ""}</p>
      </div>
      {tags.length > 0 && (
        <div class="tags" role="group" aria-label="Show only">
          {tags.map((one) => (
            <button key={one} class="tag" title={one} aria-pressed={tag === one} onClick={() => setTag(tag === one ? null : one)}>
              <span>{one}</span>
            </button>
          ))}
        </div>
      )}
      {entries === null && (
        <ul class="grid" aria-hidden="true">
          {Array.from({ length: 8 }, (_, index) => <li key={index} class="card ghost" />)}
        </ul>
      )}
      {entries?.length === 0 && <div class="empty">{props.empty}</div>}
      {entries && entries.length > 0 && shown.length === 0 && (
        <div class="empty"><p>Nothing matches “{search || tag}”.</p></div>
      )}
      {shown.length > 0 && (
        <ul class="grid">
          {shown.map((entry) => (
            <li key={entry.id} class="card" data-image={entry.id}>
              <button class="card-open" onClick={() => props.onOpen(entry)} aria-label={`${props.verb} ${entry.title}`}>
                <Thumb src={entry.thumbnail} seed={entry.id} />
                <span class="play" aria-hidden="true">
                  <svg viewBox="0 0 24 24"><path d="M8 5v14l11-7z" fill="currentColor" /></svg>
                </span>
                {entry.badge && <span class="badge">{entry.badge}</span>}
              </button>
              <div class="card-text">
                <h3 onClick={() => props.onTitle(entry)} title={entry.names.map(shortName).join(", ") || entry.id}>{entry.title}</h3>
                {props.actions && <div class="card-actions">{props.actions(entry)}</div>}
                <p class="facts">{entry.facts.map((fact) => <span key={fact} title={fact}>{fact}</span>)}</p>
                {tagsOf(entry).length > 0 && (
                  <p class="card-tags">{tagsOf(entry).map((one) => <span key={one} title={one}>{one}</span>)}</p>
                )}
              </div>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}
