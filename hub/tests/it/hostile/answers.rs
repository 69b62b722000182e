//! How it answers.

use crate::support::*;
use std::fs;
use std::time::Duration;
use w4pack_fake_hub::wire::Answer;
use w4pack_fake_hub::{FaultKind, Port, TOKEN};
use w4pack_hub::{Hub, HubError, Retry, Settings};

const LARGE: &str = "model.safetensors";

/// Whoever gives nothing for half a second is given up.
fn impatient(scene: &Scene) -> std::sync::Arc<Hub> {
    let settings = scene.settings();
    let retry = Retry { silence: Duration::from_millis(500), ..settings.retry };
    Hub::new(Settings { retry, ..settings }, scene.heard.clone()).unwrap()
}

#[test]
fn a_drip_is_no_transfer_and_is_given_up() {
    let scene = Scene::new();
    scene.fake.fail("GET", "/blobs/", 99, FaultKind::Drip(1, Duration::from_millis(50)));
    let mut said = Vec::new();
    let is_given_up_for_it = |said: &mut Vec<String>| {
        let error = in_time("a drip", Duration::from_secs(20), || {
            impatient(&scene).folder(&name(), "main").unwrap_err()
        });
        assert!(matches!(error, HubError::Network { .. }), "{error}");
        assert!(!scene.blob(LARGE).exists());
        said.push(error.to_string());
        error.to_string().contains("hardly gives anything")
    };
    // A server that is itself held up for half a second is silent instead, and given up for that.
    assert!((0..5).any(|_| is_given_up_for_it(&mut said)), "{said:?}");
    // A slow line is another thing: it gets there.
    scene.fake.state().forget_faults();
    scene.fake.fail("GET", "/blobs/", 1, FaultKind::Drip(300_000, Duration::from_millis(50)));
    impatient(&scene).folder(&name(), "main").unwrap();
}

#[test]
fn silence_is_given_up_wherever_it_comes() {
    for holds in ["/revision/", "/blobs/"] {
        let scene = Scene::new();
        // It is the client that ends this: the server would not for longer than any test takes.
        scene.fake.fail("GET", holds, 99, FaultKind::Silence(Duration::from_secs(3600)));
        let error = in_time("silence", Duration::from_secs(20), || {
            impatient(&scene).folder(&name(), "main").unwrap_err().to_string()
        });
        assert!(error.contains("did not answer in time"), "{error}");
    }
}

#[test]
fn what_is_no_http_is_tried_again_and_then_named() {
    let never_ending = format!("HTTP/1.1 200 OK\r\n{}", "x-filler: y\r\n".repeat(50_000));
    let garbage: [&[u8]; 5] = [
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"",
        never_ending.as_bytes(),
    ];
    for bytes in garbage {
        let scene = Scene::new();
        scene.fake.fail("GET", "/revision/", 1, FaultKind::Raw(bytes.to_vec()));
        scene.hub().resolve(&name(), "main").unwrap();
        scene.fake.fail("GET", "/revision/", 99, FaultKind::Raw(bytes.to_vec()));
        let error = scene.hub().resolve(&name(), "main").unwrap_err();
        assert!(matches!(error, HubError::Network { .. }), "{error}");
        assert_eq!(error.to_string().lines().count(), 1, "{error}");
    }
}

/// Bodies in chunks say no length: what is too long is cut, what breaks off is continued, and the hash
/// decides.
#[test]
fn lengths_that_are_not_said_or_not_true_pass_nothing_wrong() {
    let content = noise(3 << 20);
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunk =
        |bytes: &[u8]| [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
    let whole = [head.as_bytes(), &chunk(&content), b"0\r\n\r\n"].concat();
    let longer = [head.as_bytes(), &chunk(&content), &chunk(&[7; 999]), b"0\r\n\r\n"].concat();
    let broken = [head.as_bytes(), &chunk(&content[..100_000]), b"zzz\r\n"].concat();
    let lie = [b"HTTP/1.1 200 OK\r\nContent-Length: 3145728\r\n\r\n", &content[..9000]].concat();
    let two =
        b"HTTP/1.1 200 OK\r\nContent-Length: 3145728\r\nContent-Length: 5\r\n\r\nhello".to_vec();
    for raw in [whole, longer, broken, lie, two] {
        let scene = Scene::new();
        scene.fake.fail("GET", "/blobs/", 1, FaultKind::Raw(raw));
        let folder = scene.hub().folder(&name(), "main").unwrap();
        assert!(fs::read(folder.join(LARGE)).unwrap() == content);
    }
}

#[test]
fn a_compressed_body_is_named() {
    for (holds, encoding) in [("/tree/", "gzip"), ("/blobs/", "br"), ("/config.json", "zstd")] {
        let scene = Scene::new();
        let answer = Answer::new(200, "\u{1f}whatever").header("Content-Encoding", encoding);
        scene.fake.fail("GET", holds, 1, FaultKind::Answer(answer));
        let error = scene.hub().folder(&name(), "main").unwrap_err().to_string();
        assert!(error.contains("compressed"), "{error}");
        let asked = scene.fake.requests(Port::Api);
        assert!(asked.iter().all(|l| l.request.header("accept-encoding") == Some("identity")));
    }
}

#[test]
fn another_part_of_the_file_is_refused_when_a_download_goes_on() {
    let part = |range: Option<&str>, bytes: &[u8]| {
        let answer = Answer::new(206, bytes);
        let answer = match range {
            Some(range) => answer.header("Content-Range", range),
            None => answer,
        };
        FaultKind::Answer(answer)
    };
    for (range, bytes) in [
        (Some("bytes 0-9/3145728"), &[1; 10][..]),
        (Some("bytes 70000-70009/10"), &[1; 10]),
        (Some("bytes -1-5/x"), &[1; 10]),
        (None, &[1; 10]),
    ] {
        let scene = Scene::new();
        scene.fake.fail("GET", "/blobs/", 1, FaultKind::Cut(70_000));
        scene.fake.fail("GET", "/blobs/", 1, part(range, bytes));
        let error = scene.hub().folder(&name(), "main").unwrap_err();
        assert!(error.to_string().contains("asked for bytes 70000-"), "{error}");
        assert!(!scene.blob(LARGE).exists());
        // The next run goes on, since what lies there is right.
        scene.hub().folder(&name(), "main").unwrap();
    }
    let scene = Scene::new();
    scene.fake.fail("GET", "/blobs/", 1, FaultKind::Cut(70_000));
    scene.fake.fail("GET", "/blobs/", 1, FaultKind::Answer(Answer::new(416, "")));
    let error = scene.hub().folder(&name(), "main").unwrap_err().to_string();
    assert!(error.contains("416"), "{error}");
}

#[test]
fn a_pause_may_be_asked_for_by_a_date() {
    let scene = Scene::new();
    let busy = |date: &str, until: &str| {
        let answer = Answer::error(429, "", "slow down").header("Retry-After", until);
        FaultKind::Answer(answer.header("Date", date))
    };
    let (now, then) = ("Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:38 GMT");
    scene.fake.fail("GET", "/revision/", 1, busy(now, then));
    let begin = std::time::Instant::now();
    scene.hub().resolve(&name(), "main").unwrap();
    assert!(begin.elapsed() >= Duration::from_secs(1), "by the server's own clock");

    // By ours, where it shows none; and what has passed is no pause.
    let far = Answer::error(429, "", "").header("Retry-After", "Fri, 31 Dec 2999 23:59:59 GMT");
    scene.fake.fail("GET", "/revision/", 1, FaultKind::Answer(far));
    let error = scene.hub().resolve(&name(), "main").unwrap_err();
    assert!(matches!(error, HubError::TooMany { seconds: Some(1_000_000_000..), .. }), "{error}");
    for passed in [now, "0", "-5", "soon", "99999999999999999999999", "Sun, 99 Nov"] {
        let answer = Answer::error(429, "", "").header("Retry-After", passed);
        in_time(passed, Duration::from_secs(1), || {
            scene.fake.fail("GET", "/revision/", 1, FaultKind::Answer(answer.clone()));
            scene.hub().resolve(&name(), "main").unwrap();
        });
    }
}

#[test]
fn a_servers_words_stay_in_their_line() {
    let scene = Scene::new();
    let words = format!("no\nhint: pay here \u{1b}[31m {TOKEN} {}", "x".repeat(10_000));
    let body = serde_json::json!({"error": words}).to_string();
    scene.fake.fail("GET", "/revision/", 1, FaultKind::Answer(Answer::new(400, body)));
    let error = scene.hub_as(Some(TOKEN)).resolve(&name(), "main").unwrap_err().to_string();
    assert!(error.contains("400: no hint: pay here [31m …"), "{error}");
    assert!(error.len() < 700 && error.lines().count() == 1, "{error}");
    // Not text at all.
    scene.fake.fail("GET", "/revision/", 1, FaultKind::Answer(Answer::new(400, vec![0xff, 0, 7])));
    let error = scene.hub().resolve(&name(), "main").unwrap_err().to_string();
    assert!(error.contains("400") && !error.contains('\0'), "{error}");
}

#[test]
fn a_login_page_in_between_is_no_file() {
    for holds in ["/blobs/", "/config.json"] {
        for status in [200, 203] {
            let scene = Scene::new();
            let page = Answer::new(status, "<html>log in</html>");
            scene.fake.fail("GET", holds, 1, FaultKind::Answer(page));
            let error = scene.hub().folder(&name(), "main").unwrap_err().to_string();
            assert!(error.contains("the Hub lists"), "{error}");
        }
        // Nothing at all is what comes of a transfer that ends at once: it is asked for again.
        let scene = Scene::new();
        scene.fake.fail("GET", holds, 1, FaultKind::Answer(Answer::new(204, "")));
        let folder = scene.hub().folder(&name(), "main").unwrap();
        assert!(fs::read(folder.join(LARGE)).unwrap() == noise(3 << 20));
    }
}

#[test]
fn a_renamed_repository_is_found_and_nothing_is_sent_to_another_host() {
    // The Hub answers for an old name with 307 to the new one.
    let scene = Scene::new();
    let to = |place: String| FaultKind::Answer(Answer::new(307, "").header("Location", place));
    let old: w4pack_hub::RepositoryName = "somebody/old".parse().unwrap();
    let new = format!("/api/models/{NAME}/revision/main");
    scene.fake.fail("GET", "/somebody/old/revision/", 1, to(new));
    let tree = format!("/api/models/{NAME}/tree/{}?recursive=true", scene.commit);
    scene.fake.fail("GET", "/somebody/old/tree/", 1, to(tree));
    assert_eq!(scene.hub().resolve(&old, "main").unwrap().files.len(), 5);

    // What is sent goes on to the same host, and to no other.
    let publication = publication(scene.folder.path(), NAME);
    fs::write(scene.folder.path().join("config.json"), "{}").unwrap();
    let publication = w4pack_hub::publish::Publication {
        files: crate::support::publication(scene.folder.path(), NAME).files,
        ..publication
    };
    let here = format!("/api/models/{NAME}/preupload/main?");
    scene.fake.fail("POST", "/preupload/main", 1, to(here));
    scene.hub_as(Some(TOKEN)).publish(&publication).unwrap();
    fs::write(scene.folder.path().join("config.json"), "[]").unwrap();
    let publication = crate::support::publication(scene.folder.path(), NAME);
    scene.fake.forget();
    scene.fake.fail("POST", "/commit/", 1, to(format!("{}/steal", scene.fake.storage())));
    let error = scene.hub_as(Some(TOKEN)).publish(&publication).unwrap_err().to_string();
    assert!(error.contains("redirects a POST to 127.0.0.1"), "{error}");
    assert!(scene.fake.requests(Port::Storage).is_empty());
}
