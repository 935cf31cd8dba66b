import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { api, Refusal, type Happening, type Image, type Machine } from "./api";
import { complain } from "./parts/notices";

/** How long after a lost connection the next one is tried. */
const RETRY_MS = 2000;
/** Events come in bursts: one look for all that come within this time. */
const SETTLE_MS = 150;
/** How many of the node's latest events are kept, for details. */
const EVENTS_MAX = 500;

export interface Live {
  /** `null` until the first answer. */
  images: Image[] | null;
  machines: Machine[];
  /** The node asks for its token. */
  locked: boolean;
  /** The node does not answer at the moment. */
  away: boolean;
  /** What happened since the page was opened, the latest last. */
  events: Happening[];
  refresh: () => void;
}

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

/** Images and machines of the node, kept current by its events. */
export function useLive(): Live {
  const [images, setImages] = useState<Image[] | null>(null);
  const [machines, setMachines] = useState<Machine[]>([]);
  const [locked, setLocked] = useState(false);
  const [away, setAway] = useState(false);
  const [events, setEvents] = useState<Happening[]>([]);
  const timer = useRef(0);

  const load = useCallback(async (): Promise<boolean> => {
    try {
      const [images, machines] = await Promise.all([api.images(), api.machines()]);
      setImages(images);
      setMachines(machines);
      setLocked(false);
      setAway(false);
      return true;
    } catch (error) {
      if (error instanceof Refusal && error.status === 401) setLocked(true);
      else if (error instanceof Refusal) complain(error);
      else setAway(true);
      return false;
    }
  }, []);

  const refresh = useCallback(() => {
    clearTimeout(timer.current);
    timer.current = window.setTimeout(() => void load(), SETTLE_MS);
  }, [load]);

  useEffect(() => {
    const ended = new AbortController();
    const follow = async (): Promise<void> => {
      while (!ended.signal.aborted) {
        try {
          // the lists first: they are what is looked at
          if (await load())
            for await (const event of api.events(ended.signal)) {
              setEvents((before) => [...before, event].slice(-EVENTS_MAX));
              refresh();
            }
        } catch {
          // the node was restarted, or the host slept: try again below
        }
        await sleep(RETRY_MS);
      }
    };
    void follow();
    return () => ended.abort();
  }, [load, refresh]);

  return { images, machines, locked, away, events, refresh };
}

/** The place in the page that the address names. */
export function useRoute(): string {
  const read = (): string => location.hash.replace(/^#\/?/, "");
  const [route, setRoute] = useState(read);
  useEffect(() => {
    const changed = (): void => setRoute(read());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}

export const go = (route: string): void => {
  location.hash = `#/${route}`;
};
