//! Gives inputs to a guest without an agent that takes them: by QEMU's keyboard and pointer, and on the line of its serial console.

use bytes::Bytes;
use floe_ground::error::{NodeError, refused};
use floe_guest::input::{Input, Inputs};
use floe_machine::Machine;
use floe_machines::machines::Machines;
use std::sync::Arc;
use tokio::runtime::Handle;

/// Gives inputs once, in order. What fails is lost, and what follows on it is given all the same. `buttons`: what the pointer's were.
pub(super) fn give(
    machines: &Machines,
    runtime: &Handle,
    vm: &Arc<Machine>,
    name: &str,
    inputs: &Inputs,
    buttons: &mut u8,
) -> Result<(), NodeError> {
    let mut done = Ok(());
    let mut text = Vec::new();
    for input in &inputs.events {
        let given = match input {
            Input::Text(bytes) => {
                text.extend_from_slice(bytes);
                Ok(())
            }
            Input::Key { code, down } => match vm.press(*code, *down) {
                Ok(true) => Ok(()),
                Ok(false) => Err(refused(
                    format!("QEMU's keyboard has no key {code}"),
                    "a guest with floe-guest and uinput has it",
                )),
                Err(error) => Err(error.into()),
            },
            Input::Pointer { x, y, buttons: now } => point(vm, (*x, *y), buttons, *now),
            // a finger is a pointer whose button is down
            Input::Touch {
                at: Some(place), ..
            } => point(vm, *place, buttons, 1),
            Input::Touch { at: None, .. } => point(vm, (0, 0), buttons, 0),
        };
        done = done.and(given);
    }
    match text.is_empty() {
        true => done,
        false => done.and(type_on(machines, runtime, name, text)),
    }
}

/// Returns what the pointer's buttons are after these inputs.
pub(super) fn buttons_after(before: u8, inputs: &Inputs) -> u8 {
    let mut all = inputs.events.iter().rev();
    let last = all.find_map(|input| match input {
        Input::Pointer { buttons, .. } => Some(*buttons),
        Input::Touch { at, .. } => Some(u8::from(at.is_some())),
        Input::Key { .. } | Input::Text(_) => None,
    });
    last.unwrap_or(before)
}

fn point(vm: &Machine, (x, y): (u16, u16), buttons: &mut u8, now: u8) -> Result<(), NodeError> {
    let before = std::mem::replace(buttons, now);
    Ok(vm.point(x, y, before, now)?)
}

/// Types on a serial console, whose line is shared with those who watch it.
fn type_on(
    machines: &Machines,
    runtime: &Handle,
    name: &str,
    text: Vec<u8>,
) -> Result<(), NodeError> {
    let (_log, keyboard, work) = machines.terminal(name, 0)?;
    if let Some(work) = work {
        runtime.spawn(work);
    }
    let sent = keyboard.keys.blocking_send(Bytes::from(text));
    sent.map_err(|_| {
        refused(
            format!("nobody can type on the console of {name}"),
            "it has ended",
        )
    })
}
