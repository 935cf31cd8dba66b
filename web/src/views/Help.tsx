import { Dialog } from "../parts/Dialog";

const KEYS: [string, string][] = [
  ["/", "search machines and images"],
  ["Arrow keys", "from picture to picture: machines and images; Home and End: the first and the last"],
  ["Enter", "start the image, or show the machine"],
  ["i", "details of the machine or image that has the focus"],
  ["a", "add an image"],
  ["?", "this list"],
];

const MACHINE_KEYS: [string, string][] = [
  ["Enter", "on the screen or console: type into the guest"],
  ["Esc", "leave it for the buttons (a console: Shift + Esc); once more: back to the images"],
  ["Shift + Esc", "send Esc to the guest (a console: leave it)"],
  ["Left, Right", "from button to button"],
  ["s", "screen or serial console"],
  ["f", "full screen"],
  ["p", "pause, resume"],
  ["c", "capture"],
  ["n", "fork: clones of this moment"],
  ["i", "details"],
];

function List({ keys }: { keys: [string, string][] }) {
  return (
    <dl class="keys">
      {keys.map(([key, what]) => (
        <div key={key}>
          <dt><kbd>{key}</kbd></dt>
          <dd>{what}</dd>
        </div>
      ))}
    </dl>
  );
}

export function Help({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keys" onClose={onClose}>
      <h3>Catalogue</h3>
      <List keys={KEYS} />
      <h3>Machine</h3>
      <List keys={MACHINE_KEYS} />
      <p class="hint">
        While the guest has the keyboard, it gets all other keys. “Esc to guest” exchanges Esc and Shift + Esc, for screens and for
        consoles each.
      </p>
      <p class="hint">
        A machine opens on its serial console if that says something while the screen has nothing but its firmware’s text, or
        nothing at all; otherwise on its screen. Whatever you choose, or type into, stays.
      </p>
      <p class="hint"><a href="/licences.txt">Licences</a> of the libraries in this page.</p>
    </Dialog>
  );
}
