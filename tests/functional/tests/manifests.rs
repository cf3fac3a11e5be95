//! Files for other systems: Kubernetes, compose, quadlets, Prometheus. They can be read, and what they refer to is there.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use shunt_functional::binaries::dir;
use shunt_functional::installation::repository;
use shunt_wire::metric;
use shunt_wire::reason::Reason;

fn dist(path: &str) -> PathBuf {
    repository().join("dist").join(path)
}

/// The documents of a YAML file.
fn documents(path: &Path) -> Vec<Value> {
    const SCRIPT: &str = "import json, sys, yaml; json.dump(list(yaml.safe_load_all(open(sys.argv[1]))), sys.stdout)";
    let output = Command::new("/usr/bin/python3").args(["-c", SCRIPT]).arg(path).output().unwrap();
    assert!(output.status.success(), "{}: {output:?}", path.display());
    serde_json::from_slice(&output.stdout).unwrap()
}

fn strings<'a>(value: &'a Value, names: &[&str]) -> Vec<&'a str> {
    let found = value.as_array().into_iter().flatten();
    let found = found.map(|item| names.iter().fold(item, |at, name| &at[*name]));
    found.map(|name| name.as_str().unwrap_or_else(|| panic!("{names:?} in {value}"))).collect()
}

/// What has to be there of a program that the manifests start: `shunt`'s own commands and options.
fn assert_is_command(words: &[&str]) {
    let Some((&"shunt", args)) = words.split_first() else { return };
    let at = args.iter().position(|word| word.starts_with('-')).unwrap_or(args.len());
    // Places follow commands.
    let commands: Vec<_> = args[..at].iter().filter(|word| !word.starts_with('/')).collect();
    let output = Command::new(dir().join("shunt")).args(&commands).arg("--help").output().unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
    let help = String::from_utf8_lossy(&output.stdout).into_owned();
    for option in args.iter().filter(|word| word.starts_with("--")) {
        assert!(help.contains(option), "{option} in {words:?}");
    }
}

/// Containers mount volumes that there are, and start commands that there are; selectors find what they are for.
fn check_workload(object: &Value) {
    let spec = &object["spec"]["template"]["spec"];
    let labels = object["spec"]["template"]["metadata"]["labels"].as_object().unwrap();
    for (label, value) in object["spec"]["selector"]["matchLabels"].as_object().unwrap() {
        assert_eq!(labels.get(label), Some(value), "{label}");
    }
    let volumes: BTreeSet<_> = strings(&spec["volumes"], &["name"]).into_iter().collect();
    let mut mounted = BTreeSet::new();
    for kind in ["initContainers", "containers"] {
        for container in spec[kind].as_array().into_iter().flatten() {
            assert!(container["image"].is_string(), "{container}");
            mounted.extend(strings(&container["volumeMounts"], &["name"]));
            assert_is_command(&strings(&container["command"], &[]));
            for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
                assert_is_command(&strings(&container[probe]["exec"]["command"], &[]));
            }
        }
    }
    assert_eq!(mounted, volumes);
}

#[test]
fn kubernetes() {
    let agent = documents(&dist("kubernetes/shunt-agent.yaml"));
    let example = documents(&dist("kubernetes/example.yaml"));
    let workloads = |objects: &[Value]| {
        let kinds = ["DaemonSet", "Deployment"];
        let found =
            objects.iter().filter(|object| kinds.iter().any(|kind| object["kind"] == *kind));
        let found: Vec<_> = found.cloned().collect();
        found.iter().for_each(check_workload);
        found
    };
    assert_eq!(workloads(&example).len(), 2);
    let [daemons] = &workloads(&agent)[..] else { panic!("one DaemonSet") };
    let container = &daemons["spec"]["template"]["spec"]["containers"][0];
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
        assert!(container[probe].is_object(), "{probe}");
    }
    // Its policy.
    let policy = agent.iter().find(|object| object["kind"] == "ConfigMap").unwrap();
    let volumes = daemons["spec"]["template"]["spec"]["volumes"].as_array().unwrap();
    let name = |volume: &&Value| volume["configMap"]["name"] == policy["metadata"]["name"];
    assert!(volumes.iter().any(|volume| name(&volume)));
}

/// The YAML of a page, block by block.
fn blocks(page: &str) -> Vec<Value> {
    let text = fs::read_to_string(repository().join("docs").join(page)).unwrap();
    let yaml = text.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let parse = |text: &str| {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
        documents(file.path())
    };
    yaml.flat_map(parse).collect()
}

/// The page for its users says what the files have.
#[test]
fn page_of_kubernetes() {
    let [shown] = &blocks("kubernetes.md")[..] else { panic!("one block") };
    let example = documents(&dist("kubernetes/example.yaml"));
    let pod = &example[0]["spec"]["template"]["spec"];
    assert_eq!(shown["volumes"], pod["volumes"]);
    for field in ["name", "env", "volumeMounts"] {
        assert_eq!(shown["containers"][0][field], pod["containers"][0][field], "{field}");
    }
    let text = fs::read_to_string(repository().join("docs/kubernetes.md")).unwrap();
    let agent = &documents(&dist("kubernetes/shunt-agent.yaml"))[0];
    let container = &agent["spec"]["template"]["spec"]["containers"][0];
    for name in ["startupProbe", "readinessProbe", "livenessProbe"] {
        let probe = &container[name];
        let command = strings(&probe["exec"]["command"], &[]).join(" ");
        assert!(text.contains(&format!("`{command}`")), "{command}");
        // Kubernetes gives up after 3, unless it is told otherwise.
        let failures = probe["failureThreshold"].as_u64().unwrap_or(3);
        let row = format!("| `{name}` | {} s | {failures} failures |", probe["periodSeconds"]);
        assert!(text.contains(&row), "{row}");
    }
    let capabilities = strings(&container["securityContext"]["capabilities"]["add"], &[]);
    for capability in capabilities {
        assert!(text.contains(&format!("`{capability}`")), "{capability}");
    }
    let metrics = &documents(&dist("kubernetes-metrics/agent.yaml"))[0];
    let metrics = &metrics["spec"]["template"]["spec"]["containers"][0]["ports"][0];
    assert!(text.contains(&format!("at port {} of", metrics["containerPort"])));
    let policy = &documents(&dist("kubernetes-metrics/network-policy.yaml"))[0];
    let from = &policy["spec"]["ingress"][0]["from"][0]["namespaceSelector"]["matchLabels"];
    let namespace = from["kubernetes.io/metadata.name"].as_str().unwrap();
    assert!(text.contains(&format!("pods of the namespace `{namespace}`")));
}

/// Of each kustomization what it refers to: files, directories with kustomizations, objects that are there to be changed.
#[test]
fn kustomizations() {
    let plain = &documents(&dist("kubernetes/kustomization.yaml"))[0];
    let metrics = &documents(&dist("kubernetes-metrics/kustomization.yaml"))[0];
    let agent = documents(&dist("kubernetes/shunt-agent.yaml"));
    assert_eq!(strings(&plain["resources"], &[]), ["shunt-agent.yaml"]);
    let base = dist("kubernetes-metrics").join(strings(&metrics["resources"], &[])[0]);
    assert!(base.join("kustomization.yaml").exists());
    let images = strings(&plain["images"], &["name"]);
    let daemons = &agent[0];
    let container = &daemons["spec"]["template"]["spec"]["containers"][0];
    assert!(images.iter().all(|image| container["image"] == format!("{image}:latest")));

    let patch = strings(&metrics["patches"], &["path"]);
    let [patch] = &documents(&dist("kubernetes-metrics").join(patch[0]))[..] else { panic!() };
    for field in ["kind", "apiVersion"] {
        assert_eq!(patch[field], daemons[field]);
    }
    for field in ["name", "namespace"] {
        assert_eq!(patch["metadata"][field], daemons["metadata"][field]);
    }
    let patched = &patch["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(patched["name"], container["name"]);
    let (before, after) = (strings(&container["command"], &[]), strings(&patched["command"], &[]));
    assert!(after.starts_with(&before), "{after:?}");
    assert_is_command(&after);

    let [policy] = &documents(&dist("kubernetes-metrics/network-policy.yaml"))[..] else {
        panic!()
    };
    let selected = &policy["spec"]["podSelector"]["matchLabels"];
    assert_eq!(selected, &daemons["spec"]["template"]["metadata"]["labels"]);
    let port = &patched["ports"][0]["containerPort"];
    assert_eq!(&policy["spec"]["ingress"][0]["ports"][0]["port"], port);
    assert!(after.last().is_some_and(|address| address.ends_with(&format!(":{port}"))));
    let annotations = &patch["spec"]["template"]["metadata"]["annotations"];
    assert_eq!(annotations["prometheus.io/port"], port.to_string());
    if let Ok(output) =
        Command::new("kubectl").arg("kustomize").arg(dist("kubernetes-metrics")).output()
    {
        assert!(output.status.success(), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("--metrics-public"));
    }
}

#[test]
fn compose() {
    let [file] = &documents(&dist("containers/compose.yaml"))[..] else { panic!("one document") };
    let services = file["services"].as_object().unwrap();
    for (name, service) in services {
        for needed in service["depends_on"].as_object().into_iter().flatten() {
            assert!(services.contains_key(needed.0), "{name}: {}", needed.0);
        }
        let test = strings(&service["healthcheck"]["test"], &[]);
        assert_is_command(
            &test.iter().skip(1).map(|w| w.trim_start_matches("/usr/bin/")).collect::<Vec<_>>(),
        );
        if service["image"] == "localhost/shunt" {
            let command = strings(&service["command"], &[]);
            assert_is_command(&[&["shunt"], &command[..]].concat());
        } else {
            // `$$` is a dollar sign there.
            assert_eq!(service["environment"]["LD_PRELOAD"], "/opt/shunt/$$LIB/libshunt.so");
        }
    }
    // The same rights as on Kubernetes.
    let agent = &documents(&dist("kubernetes/shunt-agent.yaml"))[0];
    let agent = &agent["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(services["agent"]["cap_add"], agent["securityContext"]["capabilities"]["add"]);
    let quadlet = fs::read_to_string(dist("containers/shunt-agent.container")).unwrap();
    let capabilities = strings(&services["agent"]["cap_add"], &[]).join(" ");
    assert!(quadlet.contains(&format!("\nAddCapability={capabilities}\n")));
}

/// Each alert says what happened and what to do, and speaks of metrics, labels and reasons that there are.
#[test]
fn alerts() {
    let [file] = &documents(&dist("prometheus/shunt.rules.yml"))[..] else {
        panic!("one document")
    };
    let known: BTreeSet<String> = metric::all().map(|m| m.to_string()).collect();
    let reasons: BTreeSet<_> = Reason::ALL.iter().map(|reason| reason.name()).collect();
    let tests = fs::read_to_string(dist("prometheus/shunt.rules.test.yml")).unwrap();
    for rule in file["groups"][0]["rules"].as_array().unwrap() {
        let name = rule["alert"].as_str().unwrap();
        assert!(
            tests.contains(&format!("alertname: {name} }}")),
            "{name} has no test that it is silent"
        );
        for field in ["summary", "action"] {
            let text =
                rule["annotations"][field].as_str().unwrap_or_else(|| panic!("{name}: {field}"));
            assert!(text.ends_with('.') && text.len() > 20, "{name}: {text}");
        }
        let expression = rule["expr"].as_str().unwrap();
        let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for word in words.filter(|word| word.starts_with("shunt_")) {
            assert!(known.contains(word), "{name}: {word}");
        }
        let named = expression.split("reason=").skip(1).filter_map(|rest| rest.split('"').nth(1));
        for reason in named.flat_map(|named| named.split('|')) {
            assert!(reasons.contains(reason), "{name}: {reason}");
        }
    }
}

#[test]
fn alerts_go_off_when_they_should() {
    let promtool = dir().join("../prometheus/usr/bin/promtool");
    assert!(promtool.exists(), "{}: `make deps-test`", promtool.display());
    for args in [["check", "rules", "shunt.rules.yml"], ["test", "rules", "shunt.rules.test.yml"]] {
        let output = Command::new(&promtool).args(args).current_dir(dist("prometheus")).output();
        let output = output.unwrap();
        assert!(
            output.status.success(),
            "{args:?}: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
