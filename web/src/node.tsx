/** The page of a node: images to start, machines to look at. */

import { render } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { removeImage } from "./acts";
import { thumbnailOf, type Image } from "./api";
import { ago, bytes, duration, titleOf } from "./format";
import { go, useLive, useRoute } from "./live";
import { Header } from "./parts/Header";
import { Icon } from "./parts/Icon";
import { Notices } from "./parts/Notices";
import { Questions } from "./parts/Questions";
import { walk } from "./walk";
import { Add } from "./views/Add";
import { Catalogue, type Entry } from "./views/Catalogue";
import { Details, type Subject } from "./views/Details";
import { Help } from "./views/Help";
import { Launch, type Wish } from "./views/Launch";
import { MachineView } from "./views/Machine";
import { Machines } from "./views/Machines";
import { Swarms } from "./views/Swarms";

function entryOf(image: Image): Entry {
  const facts = [bytes(image.stored_bytes)];
  if (image.start_ms !== null) facts.push(`starts in ${duration(image.start_ms)}`);
  facts.push(ago(image.created_unix_s));
  return {
    id: image.id,
    title: titleOf(image),
    names: image.names,
    labels: Object.entries(image.labels).map(([key, value]) => `${key}=${value}`),
    thumbnail: thumbnailOf(image),
    facts,
    badge: image.live ? "running state" : "boots",
  };
}

function Locked() {
  return (
    <main class="locked">
      <img src="/favicon.svg" width={64} height={64} alt="" />
      <h1>This page is for the node’s user</h1>
      <p>Open it from a shell of this host, which knows its token:</p>
      <pre><code>floe open</code></pre>
    </main>
  );
}

function Empty({ onAdd }: { onAdd: () => void }) {
  return (
    <>
      <h3>No images yet</h3>
      <p>Add a disk of this computer, or an image that a hub has. Boot it, capture it, and it starts here in a moment.</p>
      <button class="primary" onClick={onAdd}><Icon name="plus" /> Add an image</button>
    </>
  );
}

/** `#/run/ADDRESS`, as a hub's page links here: nothing starts before somebody says so. */
function asked(route: string): string | null {
  return route.startsWith("run/") ? decodeURIComponent(route.slice(4)) : null;
}

function Ask({ address, onRun }: { address: string; onRun: (wish: Wish) => void }) {
  const title = address.split("/").pop() ?? address;
  return (
    <main class="locked">
      <img src="/favicon.svg" width={64} height={64} alt="" />
      <h1>Start {title}?</h1>
      <p>It would run on this host, streamed from</p>
      <pre><code>{address}</code></pre>
      <p class="buttons">
        <button onClick={() => go("")}>Cancel</button>
        <button class="primary" autofocus onClick={() => onRun({ image: address, title, thumbnail: null, seed: address })}>
          <Icon name="play" /> Start
        </button>
      </p>
    </main>
  );
}

/** What a key of the page is about: the machine or image whose card has the focus. */
function focused(): Subject | null {
  const { machine, image } = document.activeElement?.closest<HTMLElement>(".card")?.dataset ?? {};
  if (machine) return { machine };
  return image ? { image } : null;
}

function App() {
  const live = useLive();
  const route = useRoute();
  const [search, setSearch] = useState("");
  const [open, setOpen] = useState<"add" | "help" | null>(null);
  const [subject, setSubject] = useState<Subject | null>(null);
  const [wish, setWish] = useState<Wish | null>(null);
  const entries = useMemo(() => live.images?.map(entryOf) ?? null, [live.images]);
  const machine = route.startsWith("machine/") ? decodeURIComponent(route.slice(8)) : null;
  const address = asked(route);

  useEffect(() => {
    document.title = machine ? `${machine} - floe` : "floe";
  }, [machine]);
  useEffect(() => {
    // a machine that runs has had its wish
    if (machine) setWish(null);
  }, [machine]);
  useEffect(() => {
    const key = (event: KeyboardEvent): void => {
      const typing = event.target instanceof HTMLElement && event.target.closest("input, textarea, canvas, dialog");
      if (typing || document.querySelector("dialog[open]") || event.ctrlKey || event.altKey || event.metaKey) return;
      const catalogue = !machine && !wish && !address;
      const about = focused();
      if (event.key === "?") setOpen("help");
      else if (event.key === "a" && catalogue) setOpen("add");
      else if (event.key === "i" && catalogue && about) setSubject(about);
      else return catalogue ? walk(event) : undefined;
      // or the letter would be the first that is typed into the dialog
      event.preventDefault();
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, [machine, wish, address]);

  const launch = (next: Wish): void => {
    setOpen(null);
    setSubject(null);
    setWish(next);
    go("launch");
  };
  const home = (): void => {
    setWish(null);
    go("");
    live.refresh();
  };
  const start = (image: Image, own = false): void => {
    const entry = entryOf(image);
    launch({ image: entry.names[0] ?? entry.id, title: entry.title, thumbnail: entry.thumbnail, seed: entry.id, own });
  };
  const byId = (id: string): Image | undefined => live.images?.find((one) => one.id === id);
  const details = (machine: string): void => setSubject({ machine });

  /** What may stand above every view. */
  const above = (
    <>
      {open === "help" && <Help onClose={() => setOpen(null)} />}
      {subject && (
        <Details subject={subject} live={live} onSubject={setSubject} onStart={start} onClose={() => setSubject(null)} />
      )}
      <Questions />
      <Notices />
    </>
  );

  if (live.locked) return <Locked />;
  if (wish && route === "launch") return <><Launch wish={wish} onCancel={home} />{above}</>;
  if (machine) {
    const image = byId(live.machines.find((one) => one.name === machine)?.image ?? "");
    const thumbnail = image ? thumbnailOf(image) : null;
    return (
      <>
        <MachineView key={machine} name={machine} thumbnail={thumbnail} onBack={home} onDetails={details} />
        {above}
      </>
    );
  }
  if (address) return <><Ask address={address} onRun={launch} />{above}</>;
  return (
    <>
      <Header title="floe" what="Search machines and images" search={search} onSearch={setSearch}>
        <button class="primary" aria-label="Add" onClick={() => setOpen("add")}><Icon name="plus" /> <span class="wide">Add</span></button>
        <button class="quiet" aria-label="Keys" title="Keys (?)" onClick={() => setOpen("help")}><Icon name="help" /></button>
      </Header>
      {live.away && <p class="away" role="status">The node does not answer. Trying again…</p>}
      <main class="page">
        <Machines machines={live.machines} images={live.images ?? []} search={search} onDetails={details} />
        <Swarms machines={live.machines} images={live.images ?? []} search={search} />
        <Catalogue
          entries={entries}
          search={search}
          verb="Start"
          onTitle={(entry) => setSubject({ image: entry.id })}
          onOpen={(entry) => {
            const image = byId(entry.id);
            if (image) start(image);
          }}
          actions={(entry) => (
            <>
              <button class="quiet" aria-label={`Details of ${entry.title}`} title="Details (i)" onClick={() => setSubject({ image: entry.id })}>
                <Icon name="info" />
              </button>
              <button class="quiet" aria-label={`Remove ${entry.title}`} title="Remove" onClick={() => void removeImage(entry)}>
                <Icon name="trash" />
              </button>
            </>
          )}
          empty={<Empty onAdd={() => setOpen("add")} />}
        />
      </main>
      {open === "add" && (
        <Add
          onClose={() => setOpen(null)}
          onRun={(to) => launch({ image: to, title: to.split("/").pop() ?? to, thumbnail: null, seed: to })}
        />
      )}
      {above}
    </>
  );
}

const root = document.getElementById("app");
if (root) render(<App />, root);
