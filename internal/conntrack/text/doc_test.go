package text

import (
	"os"
	"strings"
	"testing"
)

func TestFieldsAreDocumented(t *testing.T) {
	const path = "../../../docs/conntrack.md"
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range fields {
		if !strings.Contains(string(doc), "`"+f.name+"`") {
			t.Errorf("%s does not explain %s", path, f.name)
		}
	}
}
