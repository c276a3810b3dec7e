# The chart, and what `cargo xtask test` does not check: the schema of a ServiceMonitor, and that a mistyped key is found.
. "$(dirname "$0")/lib.sh"

command -v helm > /dev/null || fail "helm is missing: go install helm.sh/helm/v3/cmd/helm@v3.22.0"
command -v go > /dev/null || fail "go is missing: it fetches the schema of a ServiceMonitor"
folder=deploy/kubernetes
helm lint --strict $folder/chart > "$work/lint" 2>&1 || { cat "$work/lint"; fail "helm lint"; }
helm template x $folder/chart --kube-version 1.34.0 --set networkPolicy.enabled=false --set podDisruptionBudget.enabled=false --set engine.secret= --set tls.secret= --set 'trustedProxies[0]=10.0.0.0/8' \
    --set 'args[0]=--direct' --set 'env[0].name=A' --set 'env[0].value=b' \
    --set 'imagePullSecrets[0].name=registry' --set 'extraVolumes[0].name=ca,extraVolumes[0].secret.secretName=ca' \
    --set 'extraVolumeMounts[0].name=ca,extraVolumeMounts[0].mountPath=/etc/fencepost/ca' > "$work/other.yaml"
"${PYTHON%/*}/kubernetes-validate" --quiet --strict -k 1.34 "$work/other.yaml"
helm template x $folder/chart --kube-version 1.34.0 --set 'engine.ports={6379,26379}' -s templates/serve.yaml > "$work/ports.yaml"
"${PYTHON%/*}/kubernetes-validate" --quiet --strict -k 1.34 "$work/ports.yaml"
grep -q 'port: 26379' "$work/ports.yaml" || fail "the service does not reach the second port of the engine"
helm package --destination "$work" $folder/chart > /dev/null
ok "helm lint, template with other values, and package"

crd=$(go mod download -json github.com/prometheus-operator/prometheus-operator@v0.85.0 | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
cat > "$work/check.py" <<'PY'
import sys, yaml, jsonschema

crd, file = (yaml.safe_load(open(path)) for path in sys.argv[1:3])
schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]

def strict(node):
    """Refuses unknown keys, as a server does."""
    if isinstance(node, dict):
        if node.get("type") == "object" and "properties" in node and "additionalProperties" not in node:
            node["additionalProperties"] = False
        for value in node.values():
            strict(value)
    elif isinstance(node, list):
        for value in node:
            strict(value)

for key in ("metadata",):
    schema["properties"].pop(key)
strict(schema["properties"]["spec"])
file.pop("metadata")
jsonschema.Draft7Validator(schema).validate(file)
PY
"$PYTHON" "$work/check.py" "$crd/example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml" $folder/service-monitor.yaml
sed s/interval/intreval/ $folder/service-monitor.yaml > "$work/wrong.yaml"
"$PYTHON" "$work/check.py" "$crd/example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml" "$work/wrong.yaml" 2> /dev/null && fail "a mistyped key passes"
ok "the ServiceMonitor keeps to the schema of its CRD"
for file in serve nightly nightly-check leader sidecar; do
    sed 's/automountServiceAccountToken/automountServiceAcountToken/' $folder/$file.yaml > "$work/wrong.yaml"
    "${PYTHON%/*}/kubernetes-validate" --quiet --strict -k 1.34 "$work/wrong.yaml" > /dev/null 2>&1 && fail "a mistyped key of $file.yaml passes"
done
ok "a mistyped key of each manifest is found"
