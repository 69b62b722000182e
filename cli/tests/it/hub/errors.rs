//! What a user reads when the Hub says no.

use super::*;
use w4pack_fake_hub::FaultKind;
use w4pack_fake_hub::wire::Answer;

fn refusal(scene: &Scene, what: &str, token: &str) -> String {
    let output = scene.run_with(&["inspect", what], &[("HF_TOKEN", token)]);
    let talk = words(&output);
    assert_eq!(output.status.code(), Some(2), "{talk}");
    assert!(talk.starts_with("error: could not ") && talk.contains("\nhint: "), "{talk}");
    assert!(!talk.contains("hf_the") && !talk.contains("panicked"), "{talk}");
    talk
}

#[test]
fn refusals_name_the_repository_and_the_next_step() {
    let scene = Scene::new();
    for (name, access) in [("google/private", Access::Private), ("google/gated", Access::Gated)] {
        scene.fake.publish(name, &scene.source(), access);
    }
    let cases = [
        ("google/private", "", "hf auth login"),
        ("google/gated", "", "accept its terms"),
        ("google/gated", TOKEN, "accept its terms"),
        ("google/nothing", TOKEN, "check the spelling"),
        ("google/small@v9", "", "leave out the revision"),
        ("google/small", "hf_theWrongToken", "make a new token"),
    ];
    for (what, token, next) in cases {
        let talk = refusal(&scene, what, token);
        let name = what.split('@').next().unwrap();
        assert!(talk.contains(name) && talk.contains(next), "{talk}");
    }
}

#[test]
fn a_token_is_found_where_python_keeps_it_and_shown_nowhere() {
    let scene = Scene::new();
    scene.fake.publish("google/private", &scene.source(), Access::Private);
    let file = scene.path("token");
    std::fs::write(&file, format!("{TOKEN}\n")).unwrap();
    let inspect = ["inspect", "google/private"];
    let output = scene.run_with(&inspect, &[("HF_TOKEN_PATH", text(&file))]);
    assert_eq!(output.status.code(), Some(0), "{}", words(&output));
    assert!(!words(&output).contains(TOKEN));
    std::fs::write(&file, "two words").unwrap();
    let output = scene.run_with(&inspect, &[("HF_TOKEN_PATH", text(&file))]);
    assert!(words(&output).contains("no token"), "{}", words(&output));
    assert!(!words(&output).contains("two words"));
}

#[test]
fn a_wait_is_announced_and_a_fault_of_the_server_is_exit_code_1() {
    let scene = Scene::new();
    let busy = Answer::error(429, "", "slow down").header("Retry-After", "0");
    scene.fake.fail("GET", "/revision/", 1, FaultKind::Answer(busy));
    let output = scene.succeed(&["inspect", SOURCE]);
    assert!(stderr(&output).contains("429"), "{}", stderr(&output));
    let long = Answer::error(429, "", "slow down").header("Retry-After", "9999");
    scene.fake.fail("GET", "/revision/", 1, FaultKind::Answer(long));
    let talk = refusal(&scene, SOURCE, "");
    assert!(talk.contains("9999 s"), "{talk}");

    let broken = Answer::error(500, "", "a fault").header("Retry-After", "0");
    scene.fake.fail("GET", "/revision/", 99, FaultKind::Answer(broken));
    let output = scene.run(&["inspect", SOURCE, "--json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout_json(&output)["error"].as_str().unwrap().contains("500"));
}
