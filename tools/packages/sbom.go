package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"regexp"
	"runtime/debug"
	"time"

	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/spdxlib"
)

// sbom lists the modules that are linked into a program, as the program itself has them (SPDX 2.3, JSON).
func sbom(s Source, name, arch string, binary []byte) ([]byte, error) {
	info, err := buildinfo.Read(bytes.NewReader(binary))
	if err != nil {
		return nil, fmt.Errorf("read the modules of %s: %w", name, err)
	}
	sum := sha256.Sum256(binary)
	digest := hex.EncodeToString(sum[:])
	doc := &spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT",
		DocumentName:      fmt.Sprintf("%s_%s_linux_%s", name, s.Version, arch),
		DocumentNamespace: fmt.Sprintf("https://github.com/natkit/natkit/spdx/%s/%s/%s", name, arch, digest),
		CreationInfo:      &spdx.CreationInfo{Created: s.Time.Format(time.RFC3339), Creators: []common.Creator{{CreatorType: "Tool", Creator: "natkit-packages"}}},
	}
	product := modulePackage("github.com/natkit/natkit", "v"+s.Version, "Apache-2.0")
	product.PackageName = name
	product.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: digest}}
	doc.Packages = append(doc.Packages, product)
	relate(doc, "DOCUMENT", product.PackageSPDXIdentifier, common.TypeRelationshipDescribe)
	linked := append([]*debug.Module{{Path: "stdlib", Version: info.GoVersion}}, info.Deps...)
	for _, m := range linked {
		if m.Replace != nil {
			m = m.Replace
		}
		p := modulePackage(m.Path, m.Version, "NOASSERTION")
		doc.Packages = append(doc.Packages, p)
		relate(doc, product.PackageSPDXIdentifier, p.PackageSPDXIdentifier, common.TypeRelationshipDependsOn)
	}
	if err := spdxlib.ValidateDocument(doc); err != nil {
		return nil, fmt.Errorf("list the modules of %s: %w", name, err)
	}
	var out bytes.Buffer
	err = spdxjson.Write(doc, &out, spdxjson.Indent("  "))
	return out.Bytes(), err
}

// idText is what an SPDX identifier may not have.
var idText = regexp.MustCompile(`[^0-9A-Za-z.-]+`)

func modulePackage(path, version, licence string) *spdx.Package {
	return &spdx.Package{
		PackageName: path, PackageVersion: version, PackageSPDXIdentifier: common.ElementID("Package-" + idText.ReplaceAllString(path, "-")),
		PackageDownloadLocation: "NOASSERTION", PackageLicenseConcluded: "NOASSERTION", PackageLicenseDeclared: licence, PackageCopyrightText: "NOASSERTION",
		IsFilesAnalyzedTagPresent: true,
		PackageExternalReferences: []*spdx.PackageExternalReference{{Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: "pkg:golang/" + path + "@" + version}},
	}
}

func relate(doc *spdx.Document, from, to common.ElementID, how string) {
	doc.Relationships = append(doc.Relationships, &spdx.Relationship{RefA: common.MakeDocElementID("", string(from)), RefB: common.MakeDocElementID("", string(to)), Relationship: how})
}
