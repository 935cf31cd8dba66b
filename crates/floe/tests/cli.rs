//! The command line as a user meets it: the real program, no node.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Runs `floe` with a state directory of its own.
fn floe(home: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_floe"))
        .args(args)
        .env("FLOE_HOME", home)
        .env_remove("FLOE_SOCKET")
        .env_remove("FLOE_TOKEN")
        .env_remove("FLOE_HUB")
        .env("XDG_CONFIG_HOME", home.join("config"))
        .env_remove("FLOE_CA")
        .stdin(Stdio::null())
        .output()
        .expect("the program that cargo built can be started")
}

/// The same with variables, and something on its standard input.
fn floe_with(home: &Path, env: &[(&str, &str)], input: &str, args: &[&str]) -> Output {
    use std::io::Write;
    let mut child = Command::new(env!("CARGO_BIN_EXE_floe"))
        .args(args)
        .env("FLOE_HOME", home)
        .env("XDG_CONFIG_HOME", home.join("config"))
        .env_remove("FLOE_SOCKET")
        .env_remove("FLOE_TOKEN")
        .env_remove("FLOE_HUB")
        .env_remove("FLOE_CA")
        .envs(env.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program that cargo built can be started");
    let mut stdin = child.stdin.take().expect("it is a pipe");
    let _ = stdin.write_all(input.as_bytes()); // it may not read it
    drop(stdin);
    child.wait_with_output().expect("it ends")
}

#[test]
fn a_token_is_sent_to_no_hub_that_it_was_not_meant_for() {
    let home = home();
    let push = ["push", "web", "https://hub.example"];
    for (env, said, fix) in [
        (
            &[("FLOE_TOKEN", "floe_t")][..],
            "not for which hub",
            "set FLOE_HUB=https://hub.example:443",
        ),
        (
            &[("FLOE_TOKEN", "")],
            "the token is empty",
            "unset FLOE_TOKEN",
        ),
        (
            &[("FLOE_TOKEN", "floe_t"), ("FLOE_HUB", "hub")],
            "is no hub's address",
            "https://hub.example",
        ),
    ] {
        let out = floe_with(home.path(), env, "", &push);
        let stderr = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(said) && stderr.contains(fix), "{stderr}");
    }
    // with its hub's name it goes there, and to another hub none goes: both get as far as to the node, which isn't there
    for hub in ["https://hub.example", "https://other.example"] {
        let env = [("FLOE_TOKEN", "floe_t"), ("FLOE_HUB", hub)];
        let out = floe_with(home.path(), &env, "", &push);
        assert_eq!(out.status.code(), Some(4), "{}", text(&out.stderr));
    }
    let empty = floe(
        home.path(),
        &["pull", "https://hub.example/web", "--token", ""],
    );
    assert_eq!(empty.status.code(), Some(2));
    assert!(text(&empty.stderr).contains("the token is empty"));
    // in the clear only if the user says so
    let clear = ["pull", "http://hub.example/web", "--token", "floe_t"];
    let out = floe(home.path(), &clear);
    assert_eq!(out.status.code(), Some(5));
    assert!(text(&out.stderr).contains("--insecure-token"));
    let out = floe(home.path(), &[&clear[..], &["--insecure-token"]].concat());
    assert_eq!(out.status.code(), Some(4), "{}", text(&out.stderr));
}

#[test]
fn each_certificate_authority_is_for_one_of_the_places_that_a_run_names() {
    let home = home();
    let file = |name: &str| {
        let path = home.path().join(name);
        std::fs::write(&path, "only the node reads it").unwrap();
        path.display().to_string()
    };
    let (one, two, common) = (file("one.pem"), file("two.pem"), file("a=b.pem"));
    let of_one = format!("https://one.example={one}");
    let of_two = format!("https://TWO.example:443/web={two}");
    let run = |common: Option<&str>, given: &[&str]| {
        let places = ["https://one.example/web", "floe://two.example/web"];
        let given = given.iter().flat_map(|ca| ["--ca", *ca]);
        let args = ["run", places[0], "--source", places[1]].into_iter();
        let env: Vec<_> = common.map(|file| ("FLOE_CA", file)).into_iter().collect();
        let args: Vec<&str> = args.chain(given).collect();
        let out = floe_with(home.path(), &env, "", &args);
        (out.status.code(), text(&out.stderr))
    };
    // what is right gets as far as to the node, which isn't there
    for (environment, given) in [
        (None, &[&*of_one, &of_two, &common][..]),
        (None, &[&*common]),
        (Some(&*common), &[&*of_two]),
        (Some("/nonexistent/common.pem"), &[&*common, &of_one]),
    ] {
        let (code, stderr) = run(environment, given);
        assert_eq!(code, Some(4), "{environment:?} {given:?}: {stderr}");
    }
    let elsewhere = format!("https://three.example={one}");
    let other_port = format!("https://one.example:4500={one}");
    let again = format!("floe://one.example={two}");
    for (environment, given, code, said) in [
        (None, &[&*elsewhere][..], 2, "https://three.example:443"),
        (None, &[&*other_port], 2, "https://one.example:4500"),
        (None, &[&*of_one, &again], 2, "https://one.example:443"),
        (None, &[&*one, &two], 2, "which place each is for"),
        (
            None,
            &["https://one.example=/nonexistent/x.pem"],
            3,
            "/nonexistent/x.pem",
        ),
        (None, &["one.example=x.pem"], 3, "begins with https://"),
        (
            Some("/nonexistent/common.pem"),
            &[&*of_one],
            3,
            "/nonexistent/common.pem",
        ),
        (Some(""), &[&*of_one], 2, "FLOE_CA is empty"),
    ] {
        let (ended, stderr) = run(environment, given);
        assert_eq!(ended, Some(code), "{environment:?} {given:?}: {stderr}");
        assert!(stderr.contains(said), "{environment:?} {given:?}: {stderr}");
    }
}

#[test]
fn a_login_keeps_a_token_that_the_hub_knows_and_a_logout_forgets_it() {
    use std::os::unix::fs::PermissionsExt;
    let home = home();
    let dir = home.path().join("hub");
    let token = floe_hub::create_token(&dir, "ann").unwrap();
    let listen = "127.0.0.1:0".parse().unwrap();
    let hub = floe_hub::serve(floe_hub::HubOptions::new(&dir, listen)).unwrap();
    let url = hub.url();
    let login = |input: &str| floe_with(home.path(), &[], input, &["login", &url]);
    assert_eq!(login("").status.code(), Some(2), "an empty token is none");
    let wrong = login("floe_wrong\n");
    assert_eq!(wrong.status.code(), Some(5), "{}", text(&wrong.stderr));
    let right = login(&format!("{token}\n"));
    assert!(right.status.success(), "{}", text(&right.stderr));
    let file = home.path().join("config/floe/credentials.json");
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let list = text(&floe(home.path(), &["login", "--list"]).stdout);
    assert!(list.contains(&url) && !list.contains(&token), "{list}");
    assert!(floe(home.path(), &["logout", &url]).status.success());
    assert!(!std::fs::read_to_string(&file).unwrap().contains(&token));
    assert_eq!(floe(home.path(), &["logout", &url]).status.code(), Some(3));
    let remote = floe_with(home.path(), &[], "floe_t", &["login", "http://hub.example"]);
    assert_eq!(remote.status.code(), Some(5), "{}", text(&remote.stderr));
    hub.shutdown();
}

fn home() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("floe writes UTF-8")
}

/// The subcommands that a help text lists.
fn subcommands(help: &str) -> Vec<String> {
    let Some(list) = help.split("\nCommands:\n").nth(1) else {
        return Vec::new();
    };
    list.lines()
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

fn check_help(home: &Path, path: &[String], seen: &mut Vec<String>) {
    let mut args: Vec<&str> = path.iter().map(String::as_str).collect();
    args.push("--help");
    let out = floe(home, &args);
    let help = text(&out.stdout);
    assert!(out.status.success(), "{path:?}: {}", text(&out.stderr));
    assert!(
        help.contains("Example"),
        "floe {} --help shows no example",
        path.join(" ")
    );
    assert!(
        help.contains("--json"),
        "floe {} has no --json",
        path.join(" ")
    );
    seen.push(path.join(" "));
    for name in subcommands(&help) {
        check_help(home, &[path, &[name]].concat(), seen);
    }
}

#[test]
fn every_command_teaches_with_an_example() {
    let home = home();
    let mut seen = Vec::new();
    check_help(home.path(), &[], &mut seen);
    for promised in [
        "up",
        "node",
        "hub serve",
        "hub token create",
        "hub token ls",
        "hub token revoke",
        "hub quota",
        "image import",
        "image ls",
        "image inspect",
        "image verify",
        "image optimize",
        "image rm",
        "image tag",
        "image export",
        "run",
        "ps",
        "console",
        "screenshot",
        "logs",
        "capture",
        "login",
        "logout",
        "push",
        "pull",
        "mount",
        "unmount",
        "stop",
        "rm",
        "cache ls",
        "cache gc",
        "cache verify",
        "doctor",
        "completions",
    ] {
        assert!(
            seen.iter().any(|s| s == promised),
            "floe {promised} is missing: {seen:?}"
        );
    }
    for hidden in ["supervisor", "exec-qemu"] {
        assert!(
            !seen.iter().any(|s| s == hidden),
            "{hidden} is not for users"
        );
        let out = floe(home.path(), &["help", hidden]);
        assert!(text(&out.stdout).contains("Example"), "{hidden}");
    }
}

#[test]
fn every_command_has_a_manual_page_with_its_examples() {
    let home = home();
    let mut seen = Vec::new();
    check_help(home.path(), &[], &mut seen);
    let pages = home.path().join("share/man1");
    let directory = pages.to_str().expect("a path of this test");
    let out = floe(home.path(), &["man", directory, "--json"]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let written = std::fs::read_dir(&pages).expect("it was made").count();
    assert_eq!(written, seen.len(), "{seen:?}");
    for command in seen {
        let name = format!("floe {command}").trim_end().replace(' ', "-");
        let page = std::fs::read_to_string(pages.join(format!("{name}.1")));
        let page = page.unwrap_or_else(|e| panic!("{name}.1: {e}"));
        for part in [".TH ", ".SH NAME", ".SH SYNOPSIS", ".SH EXAMPLES", ".nf\n"] {
            assert!(page.contains(part), "{name}.1 has no {part:?}: {page}");
        }
    }
}

#[test]
fn an_unknown_command_is_wrong_usage_and_a_near_one_is_suggested() {
    let home = home();
    let out = floe(home.path(), &["capure", "web"]);
    assert_eq!(out.status.code(), Some(2));
    let stderr = text(&out.stderr);
    assert!(
        stderr.starts_with("error: unrecognized subcommand 'capure'"),
        "{stderr}"
    );
    assert!(stderr.contains("'capture'"), "{stderr}");
    assert!(out.stdout.is_empty());
}

#[test]
fn a_wrong_value_says_how_to_write_it() {
    let home = home();
    for (args, hint) in [
        (
            &["run", "debian", "--memory", "512"][..],
            "did you mean 512M?",
        ),
        (&["run", "debian", "--memory", "1X"], "such as 512M or 1.5G"),
        (&["run", "debian", "-p", "80"], "for example 8080:80"),
        (&["run", "debian", "--cpus", "0"], "0 is not in"),
        (
            &["run", "debian", "--ca", "s3://bucket=ca.pem"],
            "--ca FILE",
        ),
        (&["run", "debian", "--ca", "https://hub="], "hub:443=ca.pem"),
        (&["image", "import"], "<DISKS>"),
        (&["image", "import", "a.raw", "--label", "x"], "KEY=VALUE"),
        (&["hub", "serve", "--tls-cert", "a.pem"], "--tls-key"),
        (&["completions", "tcsh"], "bash, zsh, fish"),
    ] {
        let out = floe(home.path(), args);
        assert_eq!(out.status.code(), Some(2), "{args:?}");
        let stderr = text(&out.stderr);
        assert!(stderr.contains(hint), "{args:?}: {stderr}");
    }
}

#[test]
fn without_a_node_every_command_names_the_one_that_starts_it() {
    let home = home();
    for args in [
        &["ps"][..],
        &["image", "ls"],
        &["run", "debian"],
        &["console", "web"],
        &["push", "debian", "https://hub.invalid"],
        &["cache", "ls"],
        &["down"],
    ] {
        let out = floe(home.path(), args);
        assert_eq!(out.status.code(), Some(4), "{args:?}");
        let stderr = text(&out.stderr);
        assert!(
            stderr.starts_with("error: no node answers on "),
            "{args:?}: {stderr}"
        );
        assert!(
            stderr.contains("\nfix: start one with `floe up`"),
            "{args:?}: {stderr}"
        );
    }
}

#[test]
fn with_json_an_error_is_one_line_that_a_program_can_read() {
    let home = home();
    let out = floe(home.path(), &["ps", "--json"]);
    assert_eq!(out.status.code(), Some(4));
    let stderr = text(&out.stderr);
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    let error: Value = serde_json::from_str(&stderr).expect("JSON");
    assert_eq!(error["event"], "error");
    assert_eq!(error["code"], "unreachable");
    assert!(error["fix"].as_str().is_some_and(|f| !f.is_empty()));
}

#[test]
fn a_file_that_is_not_there_is_named_before_any_node_is_asked() {
    let home = home();
    let out = floe(home.path(), &["image", "import", "/nonexistent/disk.qcow2"]);
    assert_eq!(out.status.code(), Some(3));
    let stderr = text(&out.stderr);
    assert!(
        stderr.starts_with("error: cannot open /nonexistent/disk.qcow2"),
        "{stderr}"
    );
}

#[test]
fn doctor_looks_at_everything_and_its_json_keeps_its_shape() {
    let home = home();
    let out = floe(home.path(), &["doctor", "--json"]);
    let report: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!(report.as_object().map(|o| o.len()), Some(1));
    let checks = report["checks"].as_array().expect("checks");
    let names: Vec<_> = checks.iter().filter_map(|c| c["name"].as_str()).collect();
    assert_eq!(
        names,
        [
            "qemu",
            "kvm",
            "qemu-img",
            "e2fsprogs",
            "uefi",
            "fuse",
            "user",
            "kernel",
            "vCPUs",
            "pagemap",
            "memory",
            "disk",
            "image build",
            "node"
        ]
    );
    let mut failed = false;
    for check in checks {
        let keys: Vec<_> = check
            .as_object()
            .expect("an object")
            .keys()
            .cloned()
            .collect();
        assert_eq!(keys, ["detail", "fix", "name", "status"]);
        let status = check["status"].as_str().expect("status");
        assert!(["ok", "warn", "fail"].contains(&status), "{check}");
        let fix = check["fix"].as_str().expect("fix");
        assert_eq!(status == "ok", fix.is_empty(), "{check}");
        failed |= status == "fail";
    }
    assert_eq!(out.status.code(), Some(i32::from(failed)));
    assert_eq!(
        checks.last().map(|c| &c["status"]),
        Some(&Value::from("warn")),
        "no node runs here"
    );
}

#[test]
fn doctor_names_the_packages_of_a_host_that_has_nothing() {
    let home = home();
    let out = Command::new(env!("CARGO_BIN_EXE_floe"))
        .arg("doctor")
        .env("FLOE_HOME", home.path())
        .env("PATH", home.path())
        .output()
        .expect("the program that cargo built can be started");
    let stdout = text(&out.stdout);
    assert_eq!(out.status.code(), Some(1), "{stdout}");
    for package in ["qemu-system-x86", "qemu-utils"] {
        assert!(
            stdout.contains(&format!("fix: apt install {package}")),
            "{stdout}"
        );
    }
}

#[test]
fn completions_know_the_commands_and_are_silent_without_a_node() {
    let home = home();
    for (shell, mark) in [
        ("bash", "complete -o"),
        ("zsh", "#compdef floe"),
        ("fish", "complete --keep-order"),
    ] {
        let out = floe(home.path(), &["completions", shell]);
        assert!(out.status.success());
        let script = text(&out.stdout);
        assert!(script.contains(mark), "{shell}: {script}");
        assert!(script.contains("FLOE_COMPLETE"), "{shell}: {script}");
    }
    // as bash does it, with the real script
    let complete = |words: &str, word: usize| {
        let script = format!(
            "source <(floe completions bash); COMP_WORDS=({words}); COMP_CWORD={word}; COMP_TYPE=9; \
             _clap_complete_floe floe \"${{COMP_WORDS[{word}]}}\" x; echo \"${{COMPREPLY[@]}}\""
        );
        let bin = Path::new(env!("CARGO_BIN_EXE_floe")).parent().unwrap();
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        let out = Command::new("bash")
            .args(["-c", &script])
            .env("PATH", path)
            .env("FLOE_HOME", home.path())
            .env_remove("FLOE_SOCKET")
            .output()
            .expect("bash is there");
        assert!(out.stderr.is_empty(), "{}", text(&out.stderr));
        text(&out.stdout)
    };
    assert!(complete("floe screen", 1).contains("screenshot"));
    assert!(complete("floe image in", 2).contains("inspect"));
    assert!(!complete("floe stop w", 2).contains("web"));
}

#[test]
fn a_hubs_tokens_are_made_listed_and_revoked() {
    let home = home();
    let json = |args: &[&str]| -> Value {
        let out = floe(home.path(), args);
        assert!(out.status.success(), "{args:?}: {}", text(&out.stderr));
        serde_json::from_slice(&out.stdout).expect("JSON")
    };
    let made = json(&["hub", "token", "create", "alice", "--json"]);
    assert!(
        made["token"].as_str().is_some_and(|t| t.len() >= 32),
        "{made}"
    );
    let plain = text(&floe(home.path(), &["hub", "token", "create", "alice"]).stdout);
    assert_eq!(plain.lines().count(), 1, "for $(...)");
    let list = json(&["hub", "token", "ls", "--json"]);
    assert_eq!(
        list["users"][0],
        serde_json::json!({"user": "alice", "tokens": 2})
    );
    assert_eq!(
        json(&["hub", "token", "revoke", "alice", "--json"])["revoked"],
        2
    );
    let out = floe(home.path(), &["hub", "token", "create", "../x"]);
    assert_eq!(out.status.code(), Some(2), "{}", text(&out.stderr));
}

#[test]
fn a_hubs_quotas_are_set_and_shown_beside_what_is_used() {
    let home = home();
    let out = floe(home.path(), &["hub", "quota", "alice"]);
    assert_eq!(out.status.code(), Some(2), "{}", text(&out.stderr));
    let set = [
        "hub", "quota", "alice", "--bytes", "100G", "--images", "5", "--json",
    ];
    let out = floe(home.path(), &set);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let shown: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let alice = &shown["users"][0];
    assert_eq!(
        (&alice["bytes"]["quota"], &alice["images"]["quota"]),
        (&(100u64 << 30).into(), &5.into())
    );
    assert_eq!(
        (&alice["images"]["used"], &alice["traces"]["set"]),
        (&0.into(), &false.into())
    );
    let table = text(&floe(home.path(), &["hub", "quota"]).stdout);
    assert!(table.contains("0 of 5"), "{table}");
    let out = floe(home.path(), &["hub", "quota", "--bytes", "1G"]);
    assert_eq!(out.status.code(), Some(2), "a user is needed");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let home = home();
    let script = format!(
        "'{}' completions bash | head -c 10; exit ${{PIPESTATUS[0]}}",
        env!("CARGO_BIN_EXE_floe")
    );
    let out = Command::new("bash")
        .args(["-c", &script])
        .env("FLOE_HOME", home.path())
        .output();
    let out = out.expect("bash is there");
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(out.stderr.is_empty(), "{}", text(&out.stderr));
}

#[test]
fn a_log_that_cannot_be_written_stops_nobody() {
    use std::io::{BufRead, BufReader, Read, Write};
    let home = home();
    let full = std::fs::File::options().write(true).open("/dev/full");
    let mut hub = Command::new(env!("CARGO_BIN_EXE_floe"))
        .args(["hub", "serve", "--listen", "127.0.0.1:0"])
        .env("FLOE_HOME", home.path())
        .env("FLOE_LOG", "trace")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(full.expect("Linux has it"))
        .spawn()
        .expect("the program that cargo built can be started");
    let mut told = String::new();
    let mut out = BufReader::new(hub.stdout.take().expect("a pipe"));
    out.read_line(&mut told).expect("it tells its address");
    let (_, address) = told.trim().split_once("http://").expect("an address");
    for _ in 0..3 {
        let mut stream = std::net::TcpStream::connect(address).expect("it listens");
        let ask = "GET /v1/images HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream
            .write_all(ask.as_bytes())
            .expect("it takes a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        assert!(answer.starts_with("HTTP/1.1 "), "{answer:?}");
    }
    hub.kill().expect("it is still there");
    hub.wait().expect("it ends");
}
