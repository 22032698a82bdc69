// Command manifests renders the Helm chart of natkit, writes the plain manifests that are made of it, and checks both by
// the types of Kubernetes.
//
//	scripts/go -C tools/manifests run .          compares deploy/kubernetes with the chart
//	scripts/go -C tools/manifests run . -write   writes deploy/kubernetes
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
)

func main() {
	root := flag.String("root", "../..", "the sources of natkit")
	write := flag.Bool("write", false, "write deploy/kubernetes instead of comparing it")
	flag.Parse()
	if err := run(*root, *write); err != nil {
		fmt.Fprintf(os.Stderr, "manifests: %v\n", err)
		os.Exit(1)
	}
}

// plain are the manifests for those who do not use Helm, each with the templates that it has and the values of these.
var plain = []struct {
	file, about string
	templates   []string
	values      map[string]any
}{
	{"exporter.yaml", "natkit exporter on every node: kubectl -n monitoring apply -f exporter.yaml", []string{"serviceaccount.yaml", "daemonset.yaml"}, nil},
	{"exporter-all-namespaces.yaml", "The same for the network namespaces of pods as well, in the place of exporter.yaml.", []string{"serviceaccount.yaml", "daemonset.yaml"}, map[string]any{"allNamespaces": true}},
	{"doctor-role.yaml", "For who runs 'kubectl natkit': bind both roles, natkit-doctor, to people or groups.", []string{"doctorrole.yaml"}, map[string]any{"doctorRole": map[string]any{"enabled": true}}},
	{"podmonitor.yaml", "For the Prometheus operator: where to read the metrics. The certificate has the name natkit-exporter.", []string{"podmonitor.yaml"}, map[string]any{"podMonitor": map[string]any{
		"enabled": true, "serverName": "natkit-exporter", "ca": map[string]any{"secret": map[string]any{"name": "natkit-exporter", "key": "tls.crt"}}}}},
}

func run(root string, write bool) error {
	c, err := loader.Load(filepath.Join(root, "deploy/helm/natkit"))
	if err != nil {
		return fmt.Errorf("load the chart: %w", err)
	}
	for _, p := range plain {
		text, err := manifest(c, p.templates, p.values)
		if err != nil {
			return fmt.Errorf("make %s: %w", p.file, err)
		}
		text = fmt.Sprintf("# %s\n# Made from deploy/helm/natkit; docs/kubernetes.md explains it, and the secret that it waits for.\n", p.about) + text
		if err := put(filepath.Join(root, "deploy/kubernetes", p.file), text, write); err != nil {
			return err
		}
	}
	return nil
}

// put compares a file with a text, or writes it.
func put(name, text string, write bool) error {
	if write {
		return os.WriteFile(name, []byte(text), 0o644)
	}
	have, err := os.ReadFile(name)
	if err == nil && !bytes.Equal(have, []byte(text)) {
		err = fmt.Errorf("%s is not what the chart gives; 'scripts/go -C tools/manifests run . -write' writes it", name)
	}
	return err
}

// manifest is what some templates of a chart give, as one text of several documents, each of which is valid.
func manifest(c *chart.Chart, templates []string, values map[string]any) (string, error) {
	rendered, err := render(c, values)
	if err != nil {
		return "", err
	}
	var all []string
	for _, name := range templates {
		for text := range strings.SplitSeq(strings.TrimSpace(rendered[name]), "\n---\n") {
			if err := check(text); err != nil {
				return "", fmt.Errorf("%s: %w", name, err)
			}
			all = append(all, text)
		}
	}
	return strings.Join(all, "\n---\n") + "\n", nil
}

// render returns the templates of a chart by their names, as 'helm template natkit' does in the namespace monitoring.
func render(c *chart.Chart, values map[string]any) (map[string]string, error) {
	options := chartutil.ReleaseOptions{Name: "natkit", Namespace: "monitoring", Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValues(c, values, options, nil) // checks them by values.schema.json
	if err != nil {
		return nil, err
	}
	files, err := engine.Engine{Strict: true, LintMode: false}.Render(c, all)
	if err != nil {
		return nil, err
	}
	rendered := map[string]string{}
	for name, text := range files {
		rendered[strings.TrimPrefix(name, c.Name()+"/templates/")] = text
	}
	return rendered, nil
}

// names returns the templates that give manifests.
func names(rendered map[string]string) (all []string) {
	for name, text := range rendered {
		if strings.HasSuffix(name, ".yaml") && strings.TrimSpace(text) != "" {
			all = append(all, name)
		}
	}
	sort.Strings(all)
	return all
}
