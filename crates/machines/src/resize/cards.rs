//! Network cards that a running machine is given, and that are taken away again.

use super::{RECEPTION_LIMIT, Resizes};
use floe_api::AttachedCard;
use floe_ground::{
    error::{NodeError, not_found, refused},
    news::News,
};
use floe_inventory::inventory::lifecycle::Task;
use floe_machine::Reception;
use std::time::Duration;

/// How long a guest may take to let a card or disk go: its hot-plug controller waits five seconds before it begins.
pub(super) const RELEASE_LIMIT: Duration = Duration::from_secs(60);

impl Resizes {
    /// Gives a running machine another network card, on a user network of its own.
    pub fn attach_card(&self, name: &str) -> Result<AttachedCard, NodeError> {
        let entry = self.inventory.get(name)?;
        // until its guest is somebody of its own it is on no network: its first card's cable is pulled, and a second one's is not
        entry.wait_for_identity()?;
        let operation = entry.begin(Task::Attach)?;
        let vm = operation.vm()?;
        self.check_executes(&operation, &vm)?;
        if operation.record().network.is_some() {
            return Err(refused(
                format!("machine {name} is in a family's network, where each member has one card"),
                "run a machine without --network, and give that another card",
            ));
        }
        let card = vm.add_card(None)?;
        self.machines.settle_size(&operation, None)?;
        // whatever is not known of the guest, the machine has it
        let reception = vm.reception(&card, RECEPTION_LIMIT);
        self.core.tell(name, &News::Attached(card.clone()));
        Ok(AttachedCard {
            card,
            in_use: matches!(reception, Ok(Reception::Taken)),
        })
    }

    /// Takes a card away that a machine was given while it ran, once its guest has let it go.
    pub fn detach_card(&self, name: &str, card: &str) -> Result<(), NodeError> {
        let entry = self.inventory.get(name)?;
        let operation = entry.begin(Task::Attach)?;
        let vm = operation.vm()?;
        let cards = floe_machine::added_card_ids(&vm.config().devices);
        if !cards.iter().any(|known| known == card) {
            return Err(not_found(
                format!("machine {name} was given no card {card} while it ran"),
                match cards.is_empty() {
                    true => "it has only what it was started with".to_owned(),
                    false => format!("it was given {}", cards.join(", ")),
                },
            ));
        }
        self.check_executes(&operation, &vm)?;
        let removed = vm.remove_card(card, RELEASE_LIMIT);
        // a guest that was asked before may have let it go meanwhile
        self.machines.settle_size(&operation, None)?;
        removed?;
        self.core.tell(name, &News::Detached(card.to_owned()));
        Ok(())
    }
}
