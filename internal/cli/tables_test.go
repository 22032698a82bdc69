package cli

import (
	"testing"

	"github.com/natkit/natkit/internal/table/store"
)

// TestWhereAStoreIs: the flag comes before the variables, and that of S3 before the one of all services.
func TestWhereAStoreIs(t *testing.T) {
	env := map[string]string{"AWS_ENDPOINT_URL": "http://all", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "r"}
	getenv := func(name string) string { return env[name] }
	want := store.S3{Endpoint: "http://all", AccessKey: "a", SecretKey: "b", Region: "r"}
	if got := s3Of(getenv, ""); got != want {
		t.Errorf("%+v", got)
	}
	env["AWS_ENDPOINT_URL_S3"] = "http://s3"
	if got := s3Of(getenv, ""); got.Endpoint != "http://s3" {
		t.Errorf("%+v", got)
	}
	if got := s3Of(getenv, "http://flag"); got.Endpoint != "http://flag" {
		t.Errorf("%+v", got)
	}
}
