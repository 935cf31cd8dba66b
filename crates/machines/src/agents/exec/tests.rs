use super::*;

fn request() -> Request {
    request_of(&ExecRequest::new(Program::Command(vec!["cat".into()])))
}

/// What the port's writer would send next, as frames.
fn sent(streams: &Streams, conversation: u64) -> Vec<Frame> {
    let bytes = streams.to_send(conversation).unwrap();
    let messages = Messages::default().feed(&bytes).into_iter();
    let frame = |message| match message {
        Message::Frame(Ok(frame)) => frame,
        other => panic!("{other:?}"),
    };
    messages.map(frame).collect()
}

#[tokio::test]
async fn a_process_and_its_user_hear_each_other_until_it_ends() {
    let streams = Arc::new(Streams::new());
    let conversation = streams.begin(true);
    let process = streams.start("web", &request()).unwrap();
    assert!(matches!(
        sent(&streams, conversation)[0],
        Frame::Open { stream: 1, .. }
    ));
    let (user, node) = tokio::io::duplex(1 << 20);
    let relay = tokio::spawn(process.relay(node));
    let (mut from_node, mut to_node) = tokio::io::split(user);
    let mut bytes = Vec::new();
    let input = Frame::Data {
        stream: ONLY,
        channel: Channel::Input,
        bytes: b"in".to_vec(),
    };
    input.encode(&mut bytes);
    to_node.write_all(&bytes).await.unwrap();
    let other = streams.clone();
    let got = tokio::task::spawn_blocking(move || sent(&other, conversation)).await;
    assert_eq!(got.unwrap(), [input]);
    let output = Frame::Data {
        stream: 1,
        channel: Channel::Output,
        bytes: b"out".to_vec(),
    };
    let over = Frame::Over {
        stream: 1,
        outcome: Outcome::Exited(0),
    };
    let mut wanted = Vec::new();
    for frame in [output, over] {
        frame.encode(&mut wanted);
        streams.heard(frame).unwrap();
    }
    let mut got = Vec::new();
    from_node.read_to_end(&mut got).await.unwrap();
    assert_eq!(got, wanted);
    relay.await.unwrap();
    assert!(streams.inner.lock().mux.is_empty());
}

#[tokio::test]
async fn a_user_who_goes_leaves_nothing_behind_and_one_whose_guest_goes_is_told() {
    let streams = Arc::new(Streams::new());
    let conversation = streams.begin(true);
    let process = streams.start("web", &request()).unwrap();
    let (user, node) = tokio::io::duplex(1 << 10);
    drop(user);
    process.relay(node).await;
    let frames = sent(&streams, conversation);
    assert_eq!(frames.last(), Some(&Frame::Close { stream: 1 }));
    let process = streams.start("web", &request()).unwrap();
    streams.lose("gone");
    // nothing was heard of it: it is refused as in a machine without an agent
    let error = streams.await_answer("web", &process).unwrap_err().to_api();
    assert_eq!(error.code, floe_api::ErrorCode::Refused);
    assert!(error.fix.contains("floe agent install web"), "{error}");
    assert!(matches!(process.frames.next().await, Frame::Over { .. }));
    assert_eq!(streams.to_send(conversation), None);
    drop(process);
}

#[test]
fn what_a_process_said_is_bounded_and_its_end_is_told_once() {
    let streams = Arc::new(Streams::new());
    let conversation = streams.begin(true);
    let mut process = streams.start("web", &request()).unwrap();
    let never = Cancel::default();
    sent(&streams, conversation);
    let data = |channel, bytes: &[u8]| Frame::Data {
        stream: 1,
        channel,
        bytes: bytes.to_vec(),
    };
    assert!(process.outcome(Duration::ZERO, 9, &never).is_none());
    streams.heard(data(Channel::Output, b"one ")).unwrap();
    streams.heard(data(Channel::Errors, b"why")).unwrap();
    streams.heard(data(Channel::Output, b"two three")).unwrap();
    let outcome = Outcome::Exited(3);
    streams.heard(Frame::Over { stream: 1, outcome }).unwrap();
    let said = process.outcome(Duration::from_secs(60), 9, &never).unwrap();
    assert_eq!(
        (&said.output[..], &said.errors[..]),
        (&b"one two t"[..], &b"why"[..])
    );
    assert_eq!(said.outcome, Outcome::Exited(3));
    assert!(process.outcome(Duration::ZERO, 9, &never).is_none());
    let mut process = streams.start("web", &request()).unwrap();
    streams.lose("gone");
    let said = process.outcome(Duration::from_secs(60), 9, &never).unwrap();
    assert!(matches!(said.outcome, Outcome::Lost { .. }));
}

#[test]
fn whoever_waits_for_the_end_of_a_process_can_be_told_to_stop() {
    let streams = Arc::new(Streams::new());
    let conversation = streams.begin(true);
    let mut process = streams.start("web", &request()).unwrap();
    sent(&streams, conversation);
    let cancel = Cancel::default();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| process.outcome(Duration::from_secs(3600), 9, &cancel));
        cancel.cancel();
        assert!(waits.join().unwrap().is_none());
    });
    drop(process);
    let frames = sent(&streams, conversation);
    assert_eq!(frames, [Frame::Close { stream: 1 }]);
}

#[test]
fn an_agent_that_knows_no_frames_is_to_be_replaced() {
    let streams = Arc::new(Streams::new());
    streams.begin(false);
    let error = streams.start("web", &request()).err().unwrap().to_api();
    assert!(error.fix.contains("floe agent install web"), "{error}");
}
