/** The page of a hub: its catalogue, to be looked at. Machines run on nodes. */

import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { ago, bytes, shortName, titleOf } from "./format";
import { Dialog } from "./parts/Dialog";
import { Header } from "./parts/Header";
import { Icon } from "./parts/Icon";
import { Notices } from "./parts/Notices";
import { complain, tell } from "./parts/notices";
import { Catalogue, type Entry } from "./views/Catalogue";

interface HubImage {
  id: string;
  names: string[];
  owner: string;
  public: boolean;
  pushed_unix_s: number;
  raw_bytes: number;
  stored_bytes: number;
  thumbnail: boolean;
  damaged?: boolean;
}

/** Where a node's page is unless it was told otherwise. */
const NODE_PAGE = "http://127.0.0.1:7070/";

function entryOf(image: HubImage): Entry {
  return {
    id: image.id,
    title: titleOf(image),
    names: image.names,
    labels: [],
    thumbnail: image.thumbnail ? `/v1/images/${image.id}/thumbnail` : null,
    facts: [
      ...(image.damaged ? ["damaged: push it again"] : []),
      bytes(image.stored_bytes), image.owner, ago(image.pushed_unix_s),
    ],
    ...(image.public ? {} : { badge: "private" }),
  };
}

function Chosen({ entry, onClose }: { entry: Entry; onClose: () => void }) {
  const name = shortName(entry.names[0] ?? entry.id);
  const address = `${location.origin}/${name}`;
  const command = `floe run ${address}`;
  const copy = (): void => {
    navigator.clipboard.writeText(command).then(() => tell("Copied."), complain);
  };
  return (
    <Dialog title={entry.title} onClose={onClose}>
      <p>On any host with a node, from a shell:</p>
      <div class="copy">
        <pre><code>{command}</code></pre>
        <button onClick={copy} data-first>Copy</button>
      </div>
      <p>Or with a click, if this computer runs <code>floe up</code>:</p>
      <p>
        <a class="button primary" href={`${NODE_PAGE}#/run/${encodeURIComponent(address)}`}>
          <Icon name="play" /> Start on this computer
        </a>
      </p>
    </Dialog>
  );
}

function App() {
  const [entries, setEntries] = useState<Entry[] | null>(null);
  const [search, setSearch] = useState("");
  const [chosen, setChosen] = useState<Entry | null>(null);
  const [denied, setDenied] = useState(false);
  useEffect(() => {
    const load = async (): Promise<void> => {
      const response = await fetch("/v1/images");
      if (response.status === 401) return setDenied(true);
      if (!response.ok) throw new Error(await response.text());
      const list = (await response.json()) as { images: HubImage[] };
      setEntries(list.images.map(entryOf));
    };
    load().catch(complain);
  }, []);
  if (denied) {
    return (
      <main class="locked">
        <img src="/favicon.svg" width={64} height={64} alt="" />
        <h1>This hub shows its images only with a token</h1>
        <p>The hub of <code>floe up</code> on this computer is opened from a shell:</p>
        <pre><code>floe open --hub</code></pre>
        <p>For another hub, keep your token, then run its images:</p>
        <pre><code>floe login {location.origin}</code></pre>
      </main>
    );
  }
  return (
    <>
      <Header title="floe hub" what="Search images" search={search} onSearch={setSearch} />
      <main class="page">
        <Catalogue
          entries={entries}
          search={search}
          verb="How to start"
          onOpen={setChosen}
          empty={<><h3>No public images yet</h3><p>floe push NAME {location.origin} --public</p></>}
        />
      </main>
      {chosen && <Chosen entry={chosen} onClose={() => setChosen(null)} />}
      <Notices />
    </>
  );
}

const root = document.getElementById("app");
if (root) render(<App />, root);
