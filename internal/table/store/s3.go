package store

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/s3utils"
)

// S3 is how a store that speaks S3 is reached. Nothing of it but Endpoint and Region is ever printed.
type S3 struct {
	// Endpoint is a URL; empty for AWS.
	Endpoint string
	// Region is that of the bucket; empty where the store is to be asked.
	Region                             string
	AccessKey, SecretKey, SessionToken string
	// Patience is how long one request may take with all its retries; 0 for usualPatience.
	Patience time.Duration
}

const (
	// partBytes is what is in memory of each file: it is uploaded in parts, the last of which is smaller.
	partBytes     = 8 << 20
	usualPatience = 2 * time.Minute
	// connectTime bounds the way to the store: one that is away is to be noticed before anything is read.
	connectTime = 10 * time.Second
	// tries is how often a request is sent that the store does not answer, or answers with an error that passes.
	tries = 5
	// awsRegion is where a store is that has no regions.
	awsRegion = "us-east-1"
)

// bucket is a bucket with a prefix.
type bucket struct {
	client   *minio.Core
	name     string
	prefix   string
	endpoint string
	patience time.Duration
	ctx      context.Context
}

func openBucket(ctx context.Context, to string, o S3) (*bucket, error) {
	name, prefix, _ := strings.Cut(strings.TrimPrefix(to, "s3://"), "/")
	if err := s3utils.CheckValidBucketName(name); err != nil {
		return nil, settings{fmt.Errorf("%.80q is no name of a bucket: %w", name, err)}
	}
	if o.AccessKey == "" || o.SecretKey == "" {
		return nil, settings{errors.New("there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")}
	}
	endpoint, err := endpointOf(o)
	if err != nil {
		return nil, settings{err}
	}
	b := &bucket{name: name, prefix: strings.Trim(prefix, "/"), endpoint: endpoint.Host, patience: cmp.Or(o.Patience, usualPatience), ctx: ctx}
	if o.Region == "" && o.Endpoint != "" {
		o.Region = awsRegion
	}
	b.client, err = minio.NewCore(endpoint.Host, &minio.Options{
		Creds: credentials.NewStaticV4(o.AccessKey, o.SecretKey, o.SessionToken), Secure: endpoint.Scheme == "https",
		Region: o.Region, Transport: b.transport(), MaxRetries: tries,
	})
	if err != nil {
		return nil, settings{fmt.Errorf("%s: %w", endpoint.Host, err)}
	}
	return b, b.check()
}

// endpointOf is the URL of the store.
func endpointOf(o S3) (*url.URL, error) {
	if o.Endpoint == "" {
		return &url.URL{Scheme: "https", Host: "s3.amazonaws.com"}, nil
	}
	u, err := url.Parse(o.Endpoint)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return nil, errors.New("the endpoint must be a URL such as https://s3.example.net:9000, without a path, a user or a password")
	}
	return u, nil
}

// transport is Go's with bounds; connections are reused.
func (b *bucket) transport() http.RoundTripper {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DialContext = (&net.Dialer{Timeout: min(connectTime, b.patience)}).DialContext
	t.ResponseHeaderTimeout, t.DisableCompression = b.patience, true
	return t
}

// check fails where the bucket cannot be written to, as far as that is known. A refusal to say whether it is there is none
// to write into it.
func (b *bucket) check() error {
	return b.request(func(ctx context.Context) error {
		there, err := b.client.BucketExists(ctx, b.name)
		switch code := minio.ToErrorResponse(err).StatusCode; {
		case err != nil && (code == http.StatusForbidden || code == http.StatusBadRequest):
			return b.reason(ctx)
		case err == nil && !there: // some stores say so of a key that they do not know
			if err := b.reason(ctx); err != nil {
				return err
			}
			return minio.ErrorResponse{Code: minio.NoSuchBucket, StatusCode: http.StatusNotFound}
		}
		return err
	})
}

// reason asks for what the answer without a body did not say, and returns an error where no request will be accepted. A
// refusal to list the bucket is none.
func (b *bucket) reason(ctx context.Context) error {
	listing, stop := context.WithCancel(ctx) // ends what lists further pages
	defer stop()
	first := <-b.client.Client.ListObjects(listing, b.name, minio.ListObjectsOptions{Prefix: b.prefix, Recursive: true, MaxKeys: 1})
	err := first.Err
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if !isFinal(minio.ToErrorResponse(err).Code) {
		return nil // the answer to an upload has a reason
	}
	return err
}

// isFinal reports whether an answer of the store means that its configuration, or natkit's, has to be changed.
func isFinal(code string) bool {
	return code == minio.NoSuchBucket || slices.Contains(notAccepted, code) || slices.Contains(elsewhere, code)
}

// notAccepted are the store's words for credentials that are none of its, elsewhere those for a bucket of another region.
var (
	notAccepted = []string{"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken", "InvalidAccessKeyID", "XAdminUserNotFound"}
	elsewhere   = []string{"AuthorizationHeaderMalformed", "InvalidRegion", "PermanentRedirect", "IllegalLocationConstraintException", "301 Moved Permanently", "TemporaryRedirect"}
)

// ErrSettings is in errors that no other attempt will change: the bucket, its region or the credentials are wrong.
var ErrSettings = errors.New("invalid settings")

// settings is such an error.
type settings struct{ error }

func (settings) Is(target error) bool { return target == ErrSettings }

// request bounds the time of a request and explains its error.
func (b *bucket) request(send func(context.Context) error) error {
	ctx, stop := context.WithTimeout(b.ctx, b.patience)
	defer stop()
	err := send(ctx)
	switch {
	case err == nil:
		return nil
	case b.ctx.Err() != nil:
		return b.ctx.Err()
	case ctx.Err() != nil:
		return fmt.Errorf("%s did not finish a request within %s: it is slow, or away; nothing was written", b.endpoint, b.patience)
	}
	return b.explained(err)
}

// explained is an error with what to do about it.
func (b *bucket) explained(err error) error {
	answer := minio.ToErrorResponse(err)
	err = b.inWords(answer, err)
	if isFinal(answer.Code) {
		return settings{err}
	}
	return err
}

func (b *bucket) inWords(answer minio.ErrorResponse, err error) error {
	switch code := answer.Code; {
	case code == minio.NoSuchBucket:
		return fmt.Errorf("bucket %s does not exist on %s; make it, or give another one", b.name, b.endpoint)
	case slices.Contains([]string{minio.AccessDenied, "AllAccessDisabled", "AccountProblem"}, code):
		return fmt.Errorf("%s refuses to write into bucket %s (%s): the credentials need s3:PutObject and s3:AbortMultipartUpload there", b.endpoint, b.name, answer.Code)
	case slices.Contains(notAccepted, code):
		return fmt.Errorf("%s does not accept the credentials (%s): check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN", b.endpoint, answer.Code)
	case slices.Contains(elsewhere, code):
		return fmt.Errorf("bucket %s is in another region than the request was for (%s)%s: set AWS_REGION", b.name, answer.Code, regionOf(answer))
	case code == "RequestTimeTooSkewed":
		return fmt.Errorf("%s refuses requests of this host's time (%s): set its clock", b.endpoint, answer.Code)
	}
	var off *net.OpError
	var noName *net.DNSError
	switch {
	case errors.As(err, &noName):
		return fmt.Errorf("%s cannot be reached: there is no host %s; check the endpoint", b.endpoint, noName.Name)
	case errors.As(err, &off):
		return fmt.Errorf("%s cannot be reached after %d tries: %w; check the endpoint", b.endpoint, tries, off)
	case answer.StatusCode >= 500 || answer.Code == "SlowDown":
		return fmt.Errorf("%s is not able to take it after %d tries (%s); try again later", b.endpoint, tries, cmp.Or(answer.Code, http.StatusText(answer.StatusCode)))
	case answer.Code != "" && answer.StatusCode != 0:
		return fmt.Errorf("%s answers %s to a request about bucket %s: %.200q", b.endpoint, answer.Code, b.name, answer.Message)
	}
	return fmt.Errorf("%s: %w", b.endpoint, err)
}

func regionOf(answer minio.ErrorResponse) string {
	if answer.Region == "" {
		return ""
	}
	return fmt.Sprintf(", namely %.40q", answer.Region)
}

func (b *bucket) single() bool { return false }
func (b *bucket) end()         {}

func (b *bucket) begin(name string) (file, error) {
	return &object{bucket: b, key: path.Join(b.prefix, name), buffer: make([]byte, 0, 64<<10)}, nil
}

// object is one that is being uploaded: at once where it is one part, else in parts, which make an object at the end.
type object struct {
	*bucket
	key    string
	buffer []byte
	upload string
	parts  []minio.CompletePart
	done   bool
}

func (o *object) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		if len(o.buffer) == partBytes {
			if err := o.flush(); err != nil {
				return n, err
			}
		}
		some := p[:min(len(p), partBytes-len(o.buffer))]
		o.buffer = append(o.buffer, some...)
		n, p = n+len(some), p[len(some):]
	}
	return n, nil
}

// flush uploads what is in the buffer as a part.
func (o *object) flush() error {
	if o.upload == "" {
		err := o.request(func(ctx context.Context) (err error) {
			o.upload, err = o.client.NewMultipartUpload(ctx, o.name, o.key, o.options())
			return err
		})
		if err != nil {
			return err
		}
	}
	number := len(o.parts) + 1
	err := o.request(func(ctx context.Context) error {
		part, err := o.client.PutObjectPart(ctx, o.name, o.key, o.upload, number, bytes.NewReader(o.buffer), int64(len(o.buffer)), minio.PutObjectPartOptions{})
		o.parts = append(o.parts, minio.CompletePart{PartNumber: number, ETag: part.ETag})
		return err
	})
	o.buffer = o.buffer[:0]
	return err
}

func (o *object) options() minio.PutObjectOptions {
	return minio.PutObjectOptions{ContentType: "application/vnd.apache.parquet"}
}

func (o *object) finish() error {
	if o.upload == "" {
		return nil
	}
	return o.flush()
}

func (o *object) commit() error {
	err := o.request(func(ctx context.Context) (err error) {
		if o.upload == "" {
			_, err = o.client.PutObject(ctx, o.name, o.key, bytes.NewReader(o.buffer), int64(len(o.buffer)), "", "", o.options())
		} else {
			_, err = o.client.CompleteMultipartUpload(ctx, o.name, o.key, o.upload, o.parts, o.options())
		}
		return err
	})
	o.done = err == nil
	return err
}

// abort removes the parts, also after an interrupt.
func (o *object) abort() {
	if o.upload == "" || o.done {
		return
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(o.ctx), min(o.patience, connectTime))
	defer stop()
	_ = o.client.AbortMultipartUpload(ctx, o.name, o.key, o.upload) // the store's rule for unfinished uploads is left
	o.done = true
}
