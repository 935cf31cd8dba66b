//! Parses one line of the guest agent. Any program in the guest may have written it.

use serde_json::Value;

/// An answer of the agent.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// A result.
    Return(Value),
    /// A refusal, with the agent's message.
    Error(String),
}

/// Parses one line of the agent; the error says what is wrong with it.
pub fn parse(line: &[u8]) -> Result<Answer, String> {
    let mut value: Value = serde_json::from_slice(line).map_err(|e| e.to_string())?;
    if let Some(result) = value.as_object_mut().and_then(|o| o.remove("return")) {
        return Ok(Answer::Return(result));
    }
    match value["error"]["desc"].as_str() {
        Some(description) => Ok(Answer::Error(description.into())),
        None => Err("neither a result nor an error".into()),
    }
}
