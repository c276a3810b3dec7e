//! Checks the files that other programs read: manifests of Kubernetes, of docker compose, and the workflows. Nothing is built or started.

use crate::process::on_path;
use crate::python;
use crate::runner::Done;
use crate::workspace::Workspace;

/// The version of Kubernetes whose schemas are used.
const KUBERNETES: &str = "1.34";

/// The folder of the manifests.
const FOLDER: &str = "deploy/kubernetes";

/// What `helm template` makes of the chart, and the file that has it.
const RENDERED: [(&str, &[&str]); 2] = [
    ("serve.yaml", &[]),
    (
        "service-monitor.yaml",
        &["--set", "serviceMonitor.enabled=true", "-s", "templates/servicemonitor.yaml"],
    ),
];

/// Checks all of them; a mistake fails.
pub(crate) fn manifests(workspace: &Workspace) -> Result<Done, String> {
    let files = workspace.files()?;
    let in_folder = |folder: &str| -> Vec<String> {
        let here = files.iter().filter(|file| file.parent().is_some_and(|parent| parent.ends_with(folder)));
        let here = here.filter(|file| file.extension().is_some_and(|end| end == "yaml" || end == "yml"));
        here.map(|file| file.to_string_lossy().into_owned()).collect()
    };
    let mut count = 0;
    let mut check = |program: &str, options: &[&str], files: Vec<String>| {
        count += files.len();
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        let program = python::program(workspace, program)?;
        workspace.program("manifests", &program, &[options, &files].concat()).run().map(drop)
    };
    // The schema of a ServiceMonitor is the operator's: `cargo xtask prove dist` has it.
    let kubernetes = in_folder(FOLDER).into_iter().filter(|file| !file.ends_with("service-monitor.yaml"));
    check("kubernetes-validate", &["--strict", "-k", KUBERNETES], kubernetes.collect())?;
    check(
        "check-jsonschema",
        &["--builtin-schema", "vendor.github-workflows"],
        in_folder(".github/workflows"),
    )?;
    check("check-jsonschema", &["--builtin-schema", "vendor.compose-spec"], in_folder("deploy/compose"))?;
    if !on_path("helm") {
        return Ok(Done::Passed(format!(
            "{count} files; the chart was not looked at, because helm is missing"
        )));
    }
    chart(workspace)?;
    Ok(Done::Passed(format!("{count} files and the chart")))
}

/// Checks the chart, and that the plain manifests are what it makes.
fn chart(workspace: &Workspace) -> Result<(), String> {
    let chart = format!("{FOLDER}/chart");
    workspace.program("chart", "helm", &["lint", "--strict", &chart]).run()?;
    for (file, options) in RENDERED {
        let version = format!("{KUBERNETES}.0");
        let template = ["template", "fencepost", &chart, "--kube-version", &version];
        let made = workspace.program("chart", "helm", &[&template[..], options].concat()).run()?.text;
        if made != workspace.read(&format!("{FOLDER}/{file}"))? {
            let options = [&template[..], options].concat().join(" ");
            return Err(format!(
                "{FOLDER}/{file} is not what the chart makes: helm {options} > {FOLDER}/{file}"
            ));
        }
    }
    Ok(())
}
