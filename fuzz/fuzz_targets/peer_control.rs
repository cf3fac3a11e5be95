//! Any bytes on the control connection between agents: from somebody who proves nothing, and from a peer that has proved who it
//! is and then says what it likes. A message is bytes and a value alike, or none; nobody opens a connection who has not proved.
#![no_main]

use std::sync::LazyLock;
use std::time::Duration;

use arbitrary::Arbitrary;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use libfuzzer_sys::fuzz_target;
use shunt_peer::message::Hello;
use shunt_peer::session::Preamble;
use shunt_peer::{Association, Event, Message, PublicKey, SecretKey, Session};

const NOW: Duration = Duration::from_secs(1);
const PATTERN: &str = "Noise_IK_25519_ChaChaPoly_BLAKE2s";

#[derive(Arbitrary, Debug)]
enum Script {
    /// Bytes from the beginning on, in these pieces.
    Stranger(Vec<Vec<u8>>),
    /// Each of these as a packet of a peer that has proved itself.
    Peer(Vec<Vec<u8>>),
}

/// The keys of the hostile peer and of the agent.
static KEYS: LazyLock<[(SecretKey, PublicKey); 2]> = LazyLock::new(|| {
    let texts = [
        "secret:dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=",
        "secret:XasIfmJKikt54X+Lg4AO5m87sSkmGLb9HC+LJ/+I4Os=",
    ];
    texts.map(|text| {
        let secret: SecretKey = text.parse().unwrap();
        let public = secret.public().unwrap();
        (secret, public)
    })
});

fn answerer() -> Session {
    let [(_, peer), (secret, _)] = &*KEYS;
    let (ring, slots, messages) = (1 << 16, 32, 64);
    let hello = Hello { ring, slots, messages, ..Hello::default() };
    Session::answer(secret.clone(), [*peer].into(), hello, NOW)
}

fn packet(session: &mut Session, bytes: &[u8]) -> bool {
    let len = u16::try_from(bytes.len()).unwrap().to_be_bytes();
    session.receive(&[&len[..], bytes].concat(), NOW).is_ok()
}

fn stranger(pieces: &[Vec<u8>]) {
    let mut session = answerer();
    for piece in pieces {
        let went_on = session.receive(piece, NOW).is_ok();
        assert!(session.peer().is_none() && session.event().is_none());
        if !went_on {
            return;
        }
    }
}

fn peer(messages: &[Vec<u8>]) {
    let [(secret, key), (_, agent)] = &*KEYS;
    let mut session = answerer();
    let prologue = [Preamble::OWN.bytes(), Preamble::OWN.bytes()].concat();
    let text = secret.text();
    let raw = STANDARD.decode(&text["secret:".len()..]).unwrap();
    let mut state = snow::Builder::new(PATTERN.parse().unwrap())
        .local_private_key(&raw)
        .unwrap()
        .remote_public_key(agent.bytes())
        .unwrap()
        .prologue(&prologue)
        .unwrap()
        .build_initiator()
        .unwrap();
    session.receive(&Preamble::OWN.bytes(), NOW).unwrap();
    let mut room = vec![0; 1 << 16];
    let len = state.write_message(&[], &mut room).unwrap();
    assert!(packet(&mut session, &room[..len]));
    let answer = session.outgoing()[16 + 2..][..48].to_vec();
    state.read_message(&answer, &mut room).unwrap();
    let mut transport = state.into_transport_mode().unwrap();
    for bytes in messages.iter().filter(|bytes| bytes.len() < 40_000) {
        let len = transport.write_message(bytes, &mut room).unwrap();
        let went_on = packet(&mut session, &room[..len]);
        while let Some(event) = session.event() {
            match event {
                Event::Open(proved, hello) => {
                    assert_eq!(proved, *key);
                    assert_eq!(Message::Hello(hello).bytes(), *bytes);
                    session.begin(Association::new(1), NOW).unwrap();
                }
                // The peer cannot know of another one.
                Event::Begun(goes_on) => assert!(!goes_on),
                Event::Said(message) => assert_eq!(message.bytes(), *bytes),
            }
        }
        if !went_on {
            return;
        }
    }
}

fuzz_target!(|script: Script| match script {
    Script::Stranger(pieces) => stranger(&pieces),
    Script::Peer(messages) => peer(&messages),
});
