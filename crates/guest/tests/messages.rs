//! Every message is decoded to what was encoded, and nothing else is accepted.

use floe_guest::line::LineError;
use floe_guest::message::*;
use proptest::prelude::*;

fn short() -> impl Strategy<Value = String> {
    "[a-z0-9. é]{0,20}"
}

fn me() -> impl Strategy<Value = Me> {
    (any::<u32>(), short(), short(), short()).prop_map(|(id, machine, parent, ticket)| Me {
        id,
        machine,
        parent,
        ticket,
    })
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        (any::<u64>(), any::<bool>()).prop_map(|(clones, hierarchical)| Call::Ticket {
            clones,
            hierarchical
        }),
        short().prop_map(|ticket| Call::Clone { ticket }),
        Just(Call::Exit),
        (short(), any::<Option<u64>>())
            .prop_map(|(ticket, timeout_ms)| Call::Join { ticket, timeout_ms }),
        short().prop_map(|ticket| Call::Kill { ticket }),
        Just(Call::Whoami),
        (
            prop::option::of(short()),
            any::<Option<u32>>(),
            any::<Option<u64>>()
        )
            .prop_map(|(to, cpus, memory_bytes)| Call::Offload {
                to,
                cpus,
                memory_bytes
            }),
        Just(Call::Recall),
    ]
}

fn answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        (short(), any::<u32>(), any::<u32>()).prop_map(|(ticket, clones, each)| {
            Answer::Ticket {
                ticket,
                clones,
                each,
            }
        }),
        (any::<u32>(), any::<Option<u32>>()).prop_map(|(id, clones)| Answer::Cloned { id, clones }),
        (any::<u32>(), any::<u32>()).prop_map(|(ended, lost)| Answer::Done { ended, lost }),
        me().prop_map(|me| Answer::Me(Box::new(me))),
        short().prop_map(|node| Answer::Moved { node }),
        (short(), short(), short()).prop_map(|(code, message, fix)| Answer::Refused(Refusal {
            code,
            message,
            fix
        })),
    ]
}

fn place() -> impl Strategy<Value = Place> {
    let some = || prop::option::of(short());
    let identity = (me(), some(), some(), short(), short(), some(), some()).prop_map(
        |(me, mac, mac_was, hostname, machine_id, address, gateway)| Identity {
            me,
            mac,
            mac_was,
            hostname,
            machine_id,
            address,
            gateway,
        },
    );
    let entropy = prop::collection::vec(any::<u8>(), ENTROPY_BYTES);
    let parts = (
        any::<u64>(),
        entropy,
        some(),
        prop::option::of(identity),
        some(),
    );
    parts.prop_map(|(time_ns, entropy, generation, identity, node)| Place {
        time_ns,
        entropy,
        generation,
        identity,
        node,
    })
}

proptest! {
    #[test]
    fn calls_and_answers_come_back_as_they_were(
        call in call(),
        answer in answer(),
        session: u64,
        number: u64,
        frames: bool,
        place in place(),
    ) {
        prop_assert_eq!(Call::decode(&call.encode()).unwrap(), call.clone());
        prop_assert_eq!(Answer::decode(&answer.encode()).unwrap(), answer.clone());
        for message in [
            ToHost::Wake,
            ToHost::Ready { session, version: 3, frames, hooks: !frames, inputs: frames },
            ToHost::Hooks { session, any: frames, owed: !frames },
            ToHost::Placed { session },
            ToHost::Cancel { session, number },
            ToHost::Taken { session, from: number, number: session, why: frames.then(|| "no room".into()) },
            ToHost::NotPlaced { session, why: "no card".into() },
            ToHost::Call { session, number, call },
        ] {
            prop_assert_eq!(ToHost::decode(&message.encode()).unwrap(), message);
        }
        for message in [
            ToGuest::Hello { session, version: 3, frames },
            ToGuest::Place { session, place: Box::new(place) },
            ToGuest::Answer { session, number, answer },
        ] {
            prop_assert_eq!(ToGuest::decode(&message.encode()).unwrap(), message);
        }
    }

    #[test]
    fn garbage_never_panics(text in "(call|ready|place|answer|refused)( (session|number|do|is|id|entropy|ticket)=[0-9a-z%]{0,20}){0,6}") {
        let _ = (ToHost::decode(text.as_bytes()), ToGuest::decode(text.as_bytes()));
        let _ = (Call::decode(text.as_bytes()), Answer::decode(text.as_bytes()));
    }
}

#[test]
fn a_call_is_what_docs_guest_md_says() {
    let call = Call::Ticket {
        clones: 4,
        hierarchical: false,
    };
    assert_eq!(call.encode(), b"ticket version=1 clones=4 hierarchical=0\n");
    assert!(Call::decode(b"ticket clones=4 hierarchical=0").is_err());
    assert!(Call::decode(b"ticket version=1 clones=-4 hierarchical=0").is_err());
    let offload = |cpus, memory_bytes| Call::Offload {
        to: Some("cloud".into()),
        cpus,
        memory_bytes,
    };
    assert_eq!(
        offload(Some(8), Some(8 << 30)).encode(),
        b"offload version=1 to=cloud cpus=8 memory-bytes=8589934592\n"
    );
    // as older programs say it
    assert_eq!(
        Call::decode(b"offload version=1 to=cloud"),
        Ok(offload(None, None))
    );
    assert!(Call::decode(b"offload version=1 cpus=all").is_err());
    let long = "t".repeat(TEXT_BYTES_MAX + 1);
    let call = Call::Clone { ticket: long };
    assert_eq!(
        Call::decode(&call.encode()),
        Err(LineError::BadValue("ticket"))
    );
}
