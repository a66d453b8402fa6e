//! Agents that flood their caller: memory stays bounded.

use std::path::Path;

use serde_json::json;
use sprag_agent::{
    Answer, Conversation, Driver, Event, Launch, Limits, Message, PermissionClosing, Permissions, Phase,
    Session,
};

use super::corpus::agent_exercise::{SESSION, handshake};

fn asking(driver: Driver) -> Launch {
    let session = Session::New { id: SESSION.to_owned() };
    let mut launch = Launch::new("some-agent", Path::new("/wt"), Path::new("/scratch"), session);
    launch.driver = driver;
    launch.permissions = Permissions::Ask;
    launch
}

fn get_ready(conversation: &mut Conversation) {
    conversation.begin();
    for line in handshake(conversation.driver()) {
        conversation.receive(line.as_bytes());
        conversation.receive(b"\n");
    }
    assert_eq!(conversation.phase(), Phase::Idle);
}

/// Returns a permission request in the driver's wire.
fn request(driver: Driver, number: usize) -> String {
    let message = match driver {
        Driver::ClaudeStream => json!({"type": "control_request", "request_id": number.to_string(),
            "request": {"subtype": "can_use_tool", "tool_name": "Bash", "input": {"command": "ls"}}}),
        Driver::CodexAppServer => json!({"id": number, "method": "item/commandExecution/requestApproval",
            "params": {"command": "ls", "cwd": "/wt", "itemId": "c"}}),
        Driver::Acp => json!({"id": number, "method": "session/request_permission",
            "params": {"sessionId": SESSION, "toolCall": {"toolCallId": "c", "title": "ls"}, "options": []}}),
    };
    format!("{message}\n")
}

#[test]
fn t10_a_flood_of_permission_requests_is_denied_beyond_a_bound() {
    const ASKED: usize = 1000;
    for driver in Driver::ALL {
        let mut conversation = asking(driver).conversation(Limits::default());
        get_ready(&mut conversation);
        conversation.prompt(&Message::new("m", "go")).expect("it is idle");
        while conversation.next_write().is_some() {}
        for number in 0..ASKED {
            conversation.receive(request(driver, number).as_bytes());
        }
        let mut denied = 0;
        while let Some(event) = conversation.next_event() {
            denied += usize::from(matches!(
                event,
                Event::PermissionClosed { how: PermissionClosing::ByPolicy, .. }
            ));
        }
        let answers = std::iter::from_fn(|| conversation.next_write()).count();
        assert_eq!(answers, denied, "{driver}: each denial is an answer, and nothing else is");
        let open =
            (0..ASKED).filter(|number| conversation.answer(&number.to_string(), &Answer::Allow).is_ok());
        assert_eq!(open.count() + denied, ASKED, "{driver}");
        assert!((900..ASKED).contains(&denied), "{driver}: {denied} denied");
    }
}

#[test]
fn t05_a_request_that_takes_the_id_of_an_open_one_withdraws_it() {
    for driver in Driver::ALL {
        let mut conversation = asking(driver).conversation(Limits::default());
        get_ready(&mut conversation);
        conversation.prompt(&Message::new("m", "go")).expect("it is idle");
        conversation.receive(request(driver, 7).as_bytes());
        conversation.receive(request(driver, 7).as_bytes());
        let events: Vec<Event> = std::iter::from_fn(|| conversation.next_event()).collect();
        let asked = events.iter().filter(|event| matches!(event, Event::PermissionRequested(_))).count();
        let withdrawn = |event: &&Event| {
            matches!(event, Event::PermissionClosed { how: PermissionClosing::Withdrawn, .. })
        };
        assert_eq!((asked, events.iter().filter(withdrawn).count()), (2, 1), "{driver}: {events:?}");
        assert!(conversation.answer("7", &Answer::Allow).is_ok(), "{driver}");
        assert!(conversation.answer("7", &Answer::Allow).is_err(), "{driver}");
    }
}
