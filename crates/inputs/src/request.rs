//! Reads the inputs of a request, within their bounds.

use super::decide::{GAP_MS_MAX, Kept};
use floe_api::{TYPED_MAX, TypeRequest, TypedInput, UserInput};
use floe_ground::error::{NodeError, usage};
use floe_guest::input::Input;

/// Reads a source's number.
fn source_of(text: &str) -> Result<u64, NodeError> {
    let is_one = text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
    let number = u64::from_str_radix(text, 16).ok().filter(|_| is_one);
    number.ok_or_else(|| usage(format!("{text:?} is no source"), "it has 16 hex digits"))
}

/// Reads the inputs of a request.
pub(super) fn kept_of(request: &TypeRequest) -> Result<Vec<Kept>, NodeError> {
    let from = source_of(&request.from)?;
    let count = request.inputs.len();
    let numbers_end = request.first.checked_add(count as u64);
    if request.first == 0 || count > TYPED_MAX || numbers_end.is_none_or(|end| end > u64::MAX / 2) {
        return Err(usage(
            "these are no numbers of inputs, or too many at once",
            format!("inputs are counted from 1, and {TYPED_MAX} go together"),
        ));
    }
    let read = |(number, typed): (u64, &TypedInput)| -> Result<Kept, NodeError> {
        let input = input_of(&typed.input);
        input
            .check()
            .map_err(|error| usage(format!("input {number}: {error}"), ""))?;
        Ok(Kept {
            from,
            number,
            gap_ms: typed.gap_ms.min(GAP_MS_MAX),
            input,
        })
    };
    (request.first..).zip(&request.inputs).map(read).collect()
}

fn input_of(typed: &UserInput) -> Input {
    match typed {
        UserInput::Key { code, down } => Input::Key {
            code: *code,
            down: *down,
        },
        UserInput::Pointer { x, y, buttons } => Input::Pointer {
            x: *x,
            y: *y,
            buttons: *buttons,
        },
        UserInput::Touch { finger, x, y } => Input::Touch {
            finger: *finger,
            at: Some((*x, *y)),
        },
        UserInput::Leave { finger } => Input::Touch {
            finger: *finger,
            at: None,
        },
        UserInput::Text { text } => Input::Text(text.as_bytes().to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_within_its_bounds() {
        let text = |text: &str| TypedInput {
            gap_ms: 2 * GAP_MS_MAX,
            input: UserInput::Text { text: text.into() },
        };
        let request = TypeRequest {
            from: "00000000000000ab".into(),
            first: 5,
            inputs: vec![text("a"), text("b")],
        };
        let kept = kept_of(&request).unwrap();
        let numbers: Vec<u64> = kept.iter().map(|kept| kept.number).collect();
        assert_eq!(numbers, [5, 6]);
        assert_eq!((kept[1].from, kept[1].gap_ms), (0xab, GAP_MS_MAX));
        assert_eq!(kept[1].input, Input::Text(b"b".to_vec()));
        for strange in ["", "ab", "00000000000000ag", "+0000000000000ab"] {
            assert!(source_of(strange).is_err(), "{strange}");
        }
        let refused = |first, inputs| {
            let strange = TypeRequest {
                first,
                inputs,
                ..request.clone()
            };
            kept_of(&strange).is_err()
        };
        assert!(refused(0, vec![text("a")]));
        assert!(refused(u64::MAX, vec![text("a")]));
        assert!(refused(1, vec![text("")]));
        assert!(refused(1, vec![text("a"); TYPED_MAX + 1]));
        let json = r#"{"from":"00000000000000ab","first":1,"inputs":[{"input":{"key":{"code":30,"down":true}}},{"gap_ms":9,"input":{"leave":{"finger":1}}}]}"#;
        let read: TypeRequest = serde_json::from_str(json).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), json);
        let kept = kept_of(&read).unwrap();
        assert_eq!(kept[1].input.to_string(), "t1-");
    }
}
