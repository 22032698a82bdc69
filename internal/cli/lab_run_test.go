package cli

import (
	"slices"
	"testing"

	"github.com/natkit/natkit/internal/lab"
)

// TestAllOnRequest: the series leaves out what runs on request, unless it is named.
func TestAllOnRequest(t *testing.T) {
	onRequest := func(s *lab.Scenario) bool { return s.OnRequest }
	all, err := (&labRun{}).chosen()
	if err != nil || len(all) == 0 || slices.ContainsFunc(all, onRequest) || !slices.ContainsFunc(lab.Scenarios(), onRequest) {
		t.Errorf("%d scenarios, one on request: %t, error %v", len(all), slices.ContainsFunc(all, onRequest), err)
	}
	named, err := (&labRun{only: []string{"million"}}).chosen()
	if err != nil || len(named) != 1 || named[0].Name != "million" {
		t.Errorf("named: %v, error %v", named, err)
	}
}
