package store

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/parquet-go/parquet-go"

	"github.com/natkit/natkit/internal/table"
	"github.com/natkit/natkit/internal/testutil"
)

// realS3 runs a server of S3 with the bucket nat, and returns its endpoint.
func realS3(t *testing.T) string {
	t.Helper()
	path := testutil.NeedNightlyProgram(t, "versitygw")
	dir := t.TempDir()
	for _, name := range []string{"objects/nat", "attributes"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	var says bytes.Buffer
	cmd := exec.Command(path, "--port", address, "--access", testKey, "--secret", testSecret, "--quiet", "posix", "--sidecar", filepath.Join(dir, "attributes"), filepath.Join(dir, "objects"))
	cmd.Stdout, cmd.Stderr = &says, &says
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s says: %s", path, says.String())
		}
	})
	testutil.Eventually(t, "an answer of versitygw", func() bool {
		answer, err := http.Get("http://" + address)
		if err == nil {
			answer.Body.Close()
		}
		return err == nil
	})
	return "http://" + address
}

// client is one that looks at what is in the store, apart from what wrote it.
func client(t *testing.T, endpoint string) *minio.Core {
	t.Helper()
	b, err := openBucket(t.Context(), "s3://nat", S3{Endpoint: endpoint, AccessKey: testKey, SecretKey: testSecret})
	if err != nil {
		t.Fatal(err)
	}
	return b.client
}

// stored are the names of objects, and the uploads that are not finished.
func stored(t *testing.T, c *minio.Core) (objects []string, unfinished int) {
	t.Helper()
	for o := range c.Client.ListObjects(t.Context(), "nat", minio.ListObjectsOptions{Recursive: true}) {
		if o.Err != nil {
			t.Fatal(o.Err)
		}
		objects = append(objects, o.Key)
	}
	for u := range c.ListIncompleteUploads(t.Context(), "nat", "", true) {
		if u.Err != nil {
			t.Fatal(u.Err)
		}
		unfinished++
	}
	return objects, unfinished
}

// incompressible are rows of several parts.
func incompressible(t *testing.T, s *Store, n int) {
	t.Helper()
	sink := Of[table.Finding](s)
	for i := range n {
		row := findings(1, 0)[0]
		row.ID, row.Title = fmt.Sprint(i), rand.Text()
		if err := sink.Add(row); err != nil {
			t.Fatal(err)
		}
	}
}

// A real server says at once that there is no such bucket, or that the credentials are not its own.
func TestRealS3Check(t *testing.T) {
	endpoint := realS3(t)
	check := func(bucket, key, secret string) error {
		return Check(t.Context(), Options{To: "s3://" + bucket + "/tables", Node: "gw-1", Now: noon, S3: S3{Endpoint: endpoint, AccessKey: key, SecretKey: secret}})
	}
	if err := check("nat", testKey, testSecret); err != nil {
		t.Error(err)
	}
	checkLine(t, check("other", testKey, testSecret), "bucket other does not exist")
	checkLine(t, check("nat", "AKIDOTHER", testSecret), "does not accept the credentials")
	checkLine(t, check("nat", testKey, "another"), "does not accept the credentials")
}

// A real server has what was committed, in one part or in several, and nothing of what was not.
func TestRealS3(t *testing.T) {
	endpoint := realS3(t)
	c := client(t, endpoint)
	write := func() *Store {
		s, err := Open(t.Context(), Options{To: "s3://nat/tables", Node: "gw-1", Version: "1.2.3", Now: noon, S3: S3{Endpoint: endpoint, AccessKey: testKey, SecretKey: testSecret}})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	const many = 1_000_000 // of some 20 bytes, compressed
	s := write()
	incompressible(t, s, many)
	add(t, s, []table.Sample{{Head: table.Head{Node: "gw-1", Time: table.TimeOf(noon)}}})
	if objects, _ := stored(t, c); len(objects) > 0 {
		t.Errorf("visible before they are whole: %v", objects)
	}
	if err := s.Commit(); err != nil {
		t.Fatal(err)
	}
	objects, unfinished := stored(t, c)
	if len(objects) != 2 || unfinished != 0 || !strings.HasPrefix(objects[0], "tables/findings/day=2026-11-30/node=gw-1/part-") || !strings.HasPrefix(objects[1], "tables/samples/day=2026-11-30/") {
		t.Fatalf("%v, %d unfinished", objects, unfinished)
	}
	body, info, _, err := c.GetObject(t.Context(), "nat", objects[0], minio.GetObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(body)
	if err != nil || info.Size <= 2*partBytes {
		t.Fatalf("%d bytes are not several parts: %v", info.Size, err)
	}
	rows, err := parquet.Read[table.Finding](bytes.NewReader(text), int64(len(text)))
	if err != nil || len(rows) != many || rows[many-1].ID != fmt.Sprint(many-1) {
		t.Errorf("%d rows: %v", len(rows), err)
	}

	s = write()
	incompressible(t, s, many)
	testutil.Eventually(t, "an upload that is begun", func() bool { _, unfinished := stored(t, c); return unfinished == 1 })
	s.Abort()
	if again, unfinished := stored(t, c); len(again) != 2 || unfinished != 0 {
		t.Errorf("after an abort: %v, %d unfinished", again, unfinished)
	}

	killAmid(t, "s3://nat/tables", endpoint, func() bool { _, unfinished := stored(t, c); return unfinished == 1 })
	if again, unfinished := stored(t, c); len(again) != 2 || unfinished != 1 {
		t.Errorf("after a kill: %v, %d unfinished", again, unfinished)
	}
}

// What a real server refuses is said in a line. (To a key that it does not know versitygw answers that there is no such bucket.)
func TestRealS3Refuses(t *testing.T) {
	endpoint := realS3(t)
	for _, c := range []struct {
		to, secret string
		want       []string
	}{
		{"s3://none/tables", testSecret, []string{"bucket none does not exist", "make it"}},
		{"s3://nat/tables", "another", []string{"does not accept the credentials"}},
	} {
		s, err := Open(t.Context(), Options{To: c.to, Node: "gw-1", Now: noon, S3: S3{Endpoint: endpoint, AccessKey: testKey, SecretKey: c.secret, Patience: time.Minute}})
		if err == nil {
			add(t, s, findings(1, 0))
			err = s.Commit()
		}
		checkLine(t, err, c.want...)
	}
}
