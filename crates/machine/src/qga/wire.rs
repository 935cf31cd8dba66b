//! One line of the guest agent. Foreign bytes: any program in the guest may have written them.

use serde_json::Value;

/// What the agent says.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// A result.
    Return(Value),
    /// A refusal, in the agent's words.
    Error(String),
}

/// Read one line of the agent; the error tells what is wrong with it.
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
