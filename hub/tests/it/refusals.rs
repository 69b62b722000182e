//! No, in the Hub's words and in ours; and to whom the token goes.

use crate::support::*;
use w4pack_fake_hub::repository::Access;
use w4pack_fake_hub::wire::Answer;
use w4pack_fake_hub::{FaultKind, Port, TOKEN};
use w4pack_hub::{Hub, HubError, Settings};

/// What a fetch of the scene's repository ends with.
fn refusal(scene: &Scene, token: Option<&str>, revision: &str) -> HubError {
    scene.hub_as(token).folder(&name(), revision).unwrap_err()
}

#[test]
fn each_refusal_has_its_message_and_its_next_step() {
    let private = Scene::with(Access::Private);
    let gated = Scene::with(Access::Gated);
    let public = Scene::new();
    let forbidden = Scene::new();
    let answer = Answer::error(403, "", "no right to read");
    forbidden.fake.fail("GET", "/revision/", 1, FaultKind::Answer(answer));
    let nobody = "somebody/nothing".parse().unwrap();
    let cases = [
        (refusal(&private, None, "main"), "to nobody without a token (401)", "hf auth login"),
        (refusal(&private, Some("hf_wrong"), "main"), "does not accept this token", "HF_TOKEN"),
        (refusal(&gated, None, "main"), "gated, and no token was sent", "accept its terms at"),
        (refusal(&gated, Some(TOKEN), "main"), "has no access (403)", "accept its terms at"),
        (refusal(&forbidden, Some(TOKEN), "main"), "no right to do so (403)", "the right to read"),
        (refusal(&public, None, "v9"), "no such branch, tag or commit (404)", "leave out"),
        (
            public.hub_as(Some(TOKEN)).folder(&nobody, "main").unwrap_err(),
            "no such repository, or not for this token (404)",
            "check the spelling",
        ),
    ];
    for (error, said, next) in cases {
        let (text, hint) = (error.to_string(), error.hint().unwrap());
        assert!(text.contains(said) && hint.contains(next), "{text}\nhint: {hint}");
        assert!(text.contains("`somebody/"), "{text}");
        assert!(!text.contains("hf_") && !hint.contains(TOKEN), "{text}");
        assert!(error.is_input());
    }
    let page = refusal(&gated, None, "main").hint().unwrap();
    assert!(page.contains(&format!("{}/{NAME}", gated.fake.endpoint())), "{page}");
    private.hub_as(Some(TOKEN)).folder(&name(), "main").unwrap();
}

#[test]
fn a_wait_that_the_hub_asks_for_is_kept() {
    let scene = Scene::new();
    let busy = |seconds: &str| {
        FaultKind::Answer(Answer::error(429, "", "slow down").header("Retry-After", seconds))
    };
    scene.fake.fail("GET", "/revision/", 1, busy("1"));
    let begin = std::time::Instant::now();
    scene.hub().resolve(&name(), "main").unwrap();
    assert!(begin.elapsed().as_secs_f64() >= 1.0);
    assert!(scene.heard.notes().contains("trying again in 1.0 s"), "{}", scene.heard.notes());

    // The Hub's own spelling.
    let header = "\"api\";r=0;t=1";
    let busy_hub = Answer::error(429, "", "slow down").header("RateLimit", header);
    scene.fake.fail("GET", "/revision/", 1, FaultKind::Answer(busy_hub));
    let begin = std::time::Instant::now();
    scene.hub().resolve(&name(), "main").unwrap();
    assert!(begin.elapsed().as_secs_f64() >= 1.0);

    scene.fake.fail("GET", "/revision/", 1, busy("3600"));
    let error = scene.hub().resolve(&name(), "main").unwrap_err();
    assert!(matches!(error, HubError::TooMany { seconds: Some(3600), .. }), "{error}");
    assert!(error.to_string().contains("3600 s"), "{error}");
}

#[test]
fn a_fault_of_the_server_is_sat_out_or_named() {
    let scene = Scene::new();
    let fault = || FaultKind::Answer(Answer::error(503, "", "under repair"));
    scene.fake.fail("GET", "/tree/", 2, fault());
    scene.fake.fail("GET", "/blobs/", 2, fault());
    scene.hub().folder(&name(), "main").unwrap();

    scene.fake.fail("GET", "/tree/", 99, fault());
    let error = scene.hub().resolve(&name(), "main").unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("503") && text.contains("3 times") && text.contains("under repair"),
        "{text}"
    );
    assert!(!error.is_input());
}

#[test]
fn the_token_goes_to_the_hub_and_to_no_other_port_nor_into_any_word() {
    let scene = Scene::new();
    scene.hub_as(Some(TOKEN)).folder(&name(), "main").unwrap();
    let with_token = |port| {
        let requests = scene.fake.requests(port);
        let with = |logged: &&w4pack_fake_hub::Logged| {
            logged.request.headers.values().any(|value| value.contains(TOKEN))
        };
        (requests.iter().filter(with).count(), requests.len())
    };
    let (with, all) = with_token(Port::Api);
    assert!(with == all && all > 3);
    assert_eq!(with_token(Port::Storage), (0, 1), "the redirect leads to another port");

    // A server that gives the token back does not get it into a message.
    let answer = Answer::error(400, "", &format!("bad token {TOKEN}"));
    scene.fake.fail("GET", "/revision/", 1, FaultKind::Answer(answer));
    let hub = scene.hub_as(Some(TOKEN));
    let error = hub.resolve(&name(), "main").unwrap_err().to_string();
    assert!(error.contains("bad token …"), "{error}");
    assert!(!format!("{:?}", hub.settings()).contains(TOKEN));
    assert!(!scene.heard.notes().contains(TOKEN));

    // Who wants to read as nobody does.
    scene.fake.forget();
    let token = Some(w4pack_hub::Token::new(TOKEN, "a test").unwrap());
    let settings = Settings { token, reads_without_token: true, ..scene.settings() };
    Hub::new(settings, scene.heard.clone()).unwrap().resolve(&name(), "main").unwrap();
    assert_eq!(with_token(Port::Api), (0, 2));
}

#[test]
fn redirects_that_lead_nowhere_end() {
    for to in ["/api/models/somebody/model/revision/main", "ftp://example.com/", "nowhere"] {
        let scene = Scene::new();
        let answer = Answer::new(302, "").header("Location", to);
        scene.fake.fail("GET", "/revision/", 99, FaultKind::Answer(answer));
        let error = scene.hub().resolve(&name(), "main").unwrap_err();
        assert!(error.to_string().contains("redirects"), "{error}");
    }
}

#[test]
fn what_is_no_token_is_refused_without_being_shown() {
    for wrong in ["hf_a b", "hf_a\nX-Evil: 1", "hf_ü"] {
        let error = w4pack_hub::Token::new(wrong, "HF_TOKEN").unwrap_err().to_string();
        assert!(error.contains("HF_TOKEN") && !error.contains("hf_"), "{error}");
    }
    assert!(w4pack_hub::Token::new(" hf_right\n", "HF_TOKEN").is_ok());
}
