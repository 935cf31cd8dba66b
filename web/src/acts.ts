/** What is done with machines and images at a click or key, asking first where something would be lost. */

import { api, isAwake, type Machine } from "./api";
import { complain, tell } from "./parts/notices";
import { ask, type Choice } from "./parts/questions";

const done = (work: Promise<unknown>, words: string): Promise<boolean> =>
  work.then(
    () => {
      tell(words);
      return true;
    },
    (error: unknown) => {
      complain(error);
      return false;
    },
  );

const LOST = "What is in its memory is lost; its disks are kept.";
const PAUSE: Choice = { id: "pause", label: "Pause instead", hint: "Its CPUs stand still; nothing is lost." };
const PARK: Choice = { id: "park", label: "Park instead", hint: "Its memory goes to the disk. It goes on when it is woken, or somebody connects to one of its ports." };
const CAPTURE: Choice = { id: "capture", label: "Capture first", hint: "Memory, disks and screen become an image." };

export const isPaused = (machine: Machine): boolean => machine.paused_for?.includes("user") ?? false;

export async function start(name: string): Promise<boolean> {
  return done(api.start(name, () => undefined), `${name} runs again, from its disks.`);
}

/** Whether it has memory that could be lost, on this host or stored. */
const hasMemory = (machine: Machine): boolean => isAwake(machine.status) || machine.status === "parked";

/** Lets a parked machine go on where it was. */
export async function wake(name: string): Promise<boolean> {
  return done(api.start(name, () => undefined), `${name} goes on where it was.`);
}

export async function pauseOrResume(machine: Machine): Promise<boolean> {
  const { name } = machine;
  if (!isPaused(machine)) return done(api.pause(name), `${name} is paused; its memory is kept.`);
  return done(api.resume(name), `${name} goes on.`);
}

/** Stops a machine once its user knows what is lost. `capture` opens the dialog for that. */
export async function stop(machine: Machine, capture: () => void): Promise<void> {
  const { name } = machine;
  const choices: Choice[] = [
    ...(isPaused(machine) ? [] : [PAUSE, PARK]),
    CAPTURE,
    { id: "down", label: "Shut down", hint: "The guest is asked to power down, and switched off after 30 seconds.", loses: true },
    { id: "off", label: "Switch off", hint: "At once, as if its plug were pulled.", loses: true },
  ];
  const chosen = await ask(`Stop ${name}?`, LOST, choices);
  if (chosen === "pause") await pauseOrResume(machine);
  if (chosen === "park") await done(api.park(name, () => undefined), `${name} is parked.`);
  if (chosen === "capture") capture();
  if (chosen === "down" || chosen === "off")
    await done(api.stop(name, chosen === "off"), `${name} is stopped; its disks are kept.`);
}

/** Boots a machine from its disks, whether it runs or not. */
export async function restart(machine: Machine): Promise<void> {
  const { name } = machine;
  if (hasMemory(machine)) {
    const choices: Choice[] = [{ id: "off", label: "Restart", hint: "Switches it off at once, and boots it from its disks.", loses: true }];
    if ((await ask(`Restart ${name}?`, LOST, choices)) !== "off") return;
    try {
      await api.stop(name, true);
    } catch (error) {
      return complain(error);
    }
  }
  await start(name);
}

export async function remove(machine: Machine): Promise<void> {
  const { name } = machine;
  const lost = hasMemory(machine) ? "It is switched off, and what is in its memory and on its disks is lost." : "What is on its disks is lost.";
  const choices: Choice[] = [{ id: "remove", label: "Remove", hint: "This can’t be undone. Images that were captured of it stay.", loses: true }];
  if ((await ask(`Remove ${name}?`, lost, choices)) === "remove") await done(api.remove(name), `${name} is removed.`);
}

export async function removeImage(image: { id: string; title: string; names: string[] }): Promise<void> {
  const others = image.names.slice(1);
  const lost = others.length > 0 ? `Only this name is removed: it stays as ${others.join(", ")}.` : "Memory, disks and screen of that moment are lost, unless a hub has it, too.";
  const choices: Choice[] = [{ id: "remove", label: "Remove", hint: others.length > 0 ? "" : "This can’t be undone.", loses: true }];
  if ((await ask(`Remove the image ${image.title}?`, lost, choices)) !== "remove") return;
  await done(api.removeImage(image.names[0] ?? image.id), `${image.title} is removed.`);
}
