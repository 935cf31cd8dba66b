//! Parses one line of QMP. It must not be trusted, because a guest may have taken over its QEMU.

use serde_json::Value;

/// Longest line that is read, in bytes: 16 times the answer to `query-qmp-schema`, the longest of QEMU 7.2 to 10.
pub const LINE_BYTES_MAX: usize = 4 << 20;

/// A message of QEMU.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// The first line of a connection.
    Greeting,
    /// A command's result.
    Return {
        /// The command's number, if it had one.
        id: Option<u64>,
        /// The result.
        value: Value,
    },
    /// A command's failure.
    Error {
        /// The command's number, if it had one.
        id: Option<u64>,
        /// QEMU's error class.
        class: String,
        /// QEMU's message text.
        description: String,
    },
    /// An event.
    Event(Event),
}

/// An event in QEMU.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// QEMU's name of the event, such as `SHUTDOWN`.
    pub name: String,
    /// The event's data; null if it has none.
    pub data: Value,
}

/// A line that is not QMP.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a line that is not QMP: {what} ({excerpt:?})")]
pub struct WireError {
    /// What is wrong with it.
    pub what: String,
    /// Its first bytes.
    pub excerpt: String,
}

/// Parses one line, with or without its line end.
pub fn parse(line: &[u8]) -> Result<Message, WireError> {
    let error = |what: String| WireError {
        what,
        excerpt: String::from_utf8_lossy(&line[..line.len().min(80)]).into_owned(),
    };
    if line.len() > LINE_BYTES_MAX {
        return Err(error(format!("longer than {LINE_BYTES_MAX} bytes")));
    }
    let value: Value = serde_json::from_slice(line).map_err(|e| error(e.to_string()))?;
    let Value::Object(mut object) = value else {
        return Err(error("not an object".into()));
    };
    let id = object.get("id").and_then(Value::as_u64);
    let text = |v: Option<&Value>| v.and_then(Value::as_str).map(str::to_string);
    if object.contains_key("QMP") {
        Ok(Message::Greeting)
    } else if let Some(value) = object.remove("return") {
        Ok(Message::Return { id, value })
    } else if let Some(failure) = object.get("error") {
        Ok(Message::Error {
            id,
            class: text(failure.get("class")).unwrap_or_default(),
            description: text(failure.get("desc")).unwrap_or_default(),
        })
    } else if let Some(name) = text(object.get("event")) {
        Ok(Message::Event(Event {
            name,
            data: object.remove("data").unwrap_or(Value::Null),
        }))
    } else {
        Err(error("neither greeting, return, error nor event".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_qemu_says_is_understood() {
        assert_eq!(
            parse(br#"{"QMP": {"version": {}, "capabilities": []}}"#),
            Ok(Message::Greeting)
        );
        assert_eq!(
            parse(b"{\"return\": {}, \"id\": 7}\r\n"),
            Ok(Message::Return {
                id: Some(7),
                value: serde_json::json!({})
            })
        );
        let error = parse(br#"{"id": 1, "error": {"class": "GenericError", "desc": "no"}}"#);
        assert!(
            matches!(error, Ok(Message::Error { id: Some(1), description, .. }) if description == "no")
        );
        let event = parse(br#"{"event": "RESET", "timestamp": {"seconds": 1, "microseconds": 2}}"#);
        assert!(matches!(event, Ok(Message::Event(e)) if e.name == "RESET" && e.data.is_null()));
    }

    proptest! {
        #[test]
        fn garbage_is_refused_and_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn any_json_object_is_understood_or_refused(key in "QMP|return|error|event|id|x", value in "[0-9]{1,30}|\\[\\]|\"a\"|null|\\{\\}") {
            let _ = parse(format!("{{\"{key}\": {value}}}").as_bytes());
        }
    }
}
