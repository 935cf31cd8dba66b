//! The settings that sources have of their process's environment: buckets' credentials and servers, and proxies.

use std::ffi::OsString;

use floe_http::Proxies;

use crate::Options;

/// Names and values in which settings are looked for.
pub(crate) struct Environment(Vec<(String, String)>);

impl Environment {
    /// Takes what the options have, or else this process's own. An empty value counts as none.
    pub fn of(options: &Options) -> Environment {
        let text = |(name, value): (OsString, OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let mut all = match &options.environment {
            Some(given) => given.clone(),
            None => std::env::vars_os().filter_map(text).collect(),
        };
        all.retain(|(_, value)| !value.is_empty());
        Environment(all)
    }

    /// Returns the value of a variable.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Returns the variables whose names begin so.
    pub fn with_prefix(&self, prefix: &str) -> impl Iterator<Item = (&str, &str)> {
        let all = self.0.iter().map(|(name, value)| (&**name, &**value));
        all.filter(move |(name, _)| name.starts_with(prefix))
    }

    /// Returns which proxies are to be used.
    pub fn proxies(&self) -> Proxies {
        Proxies::of(|name| self.get(name).map(str::to_owned))
    }
}
