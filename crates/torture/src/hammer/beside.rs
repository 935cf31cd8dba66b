//! Commands beside node and hub: other processes that ask both, and that read and change the hub's catalogue, as an operator's
//! do.
use super::work::{REST, Worker};
use anyhow::{Context as _, ensure};
use serde::Deserialize;
use std::process::{Command, Stdio};

/// So many users get tokens in turn.
const USERS: u64 = 20;
/// A user's tokens are revoked in one of so many rounds.
const REVOKE_EVERY: u64 = 5;

/// What `floe hub token ls --json` prints.
#[derive(Deserialize)]
struct Listed {
    users: Vec<User>,
}

#[derive(Deserialize)]
struct User {
    user: String,
    tokens: u64,
}

impl Worker {
    /// Runs the floe command. Returns what it printed.
    pub(super) fn floe(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = Command::new(&self.places.floe)
            .env_remove("FLOE_HUB")
            .arg("--socket")
            .arg(&self.places.node)
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot run {}", self.places.floe.display()))?;
        ensure!(
            output.status.success(),
            "floe {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
        self.done.lock().commands += 1;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs commands until the run is over.
    pub fn command_without_end(&self) {
        let mut number = 0;
        while self.goes_on() {
            number += 1;
            self.job(&format!("commands {number}"), || self.commands(number));
            std::thread::sleep(REST);
        }
    }

    /// Runs each command once.
    pub fn commands(&self, number: u64) -> anyhow::Result<()> {
        let dir = self.places.hub_dir.to_str().context("its path is text")?;
        let user = format!("user{}", number % USERS);
        if number.is_multiple_of(REVOKE_EVERY) {
            self.promised.lock().revoked(&user);
            self.floe(&["hub", "token", "revoke", &user, "--dir", dir])?;
        }
        self.floe(&["hub", "token", "create", &user, "--dir", dir])?;
        self.promised.lock().token(&user);
        self.look_at_tokens()?;
        self.floe(&["hub", "quota", "--dir", dir])?;
        self.floe(&["ps"])?;
        self.floe(&["image", "ls"])?;
        let (hub, token) = (self.places.hub.as_str(), self.places.token.as_str());
        self.floe(&["image", "ls", hub, "--insecure-token", "--token", token])?;
        Ok(())
    }

    /// Looks whether every token is there that was acknowledged.
    pub fn look_at_tokens(&self) -> anyhow::Result<()> {
        let dir = self.places.hub_dir.to_str().context("its path is text")?;
        let listed = self.floe(&["hub", "token", "ls", "--json", "--dir", dir])?;
        let listed: Listed = serde_json::from_str(&listed)?;
        let listed = listed.users.into_iter();
        let listed = listed.map(|user| (user.user, user.tokens)).collect();
        let lost = self.promised.lock().lost_tokens(&listed);
        self.done.lock().lost_tokens.extend(lost);
        Ok(())
    }
}
