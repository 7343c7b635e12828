{{- define "prl.fullname" -}}
{{ printf "%s" .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* An environment's component: what Kubernetes calls its servers. */}}
{{- define "prl.envserver" -}}
envserver-{{ . | lower | replace "_" "-" | trimAll "-" }}
{{- end }}

{{/* Labels by which pods are selected: they never change. */}}
{{- define "prl.selector" -}}
app.kubernetes.io/name: prl
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "prl.labels" -}}
{{ include "prl.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
prl/run: {{ .Values.run | quote }}
{{- end }}

{{/* The image of a workload: its own words over those of all. Takes (dict "root" $ "image" own). */}}
{{- define "prl.image" -}}
{{- $image := merge (deepCopy (get . "image" | default dict)) .root.Values.image -}}
{{ $image.repository }}:{{ $image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{/* The stages there are, as component → stage: what users, budgets and policies are made for. */}}
{{- define "prl.components" -}}
{{- $all := dict "setup" "setup" "inference" "inference" -}}
{{- range $name, $stage := .Values.stages }}{{ if $stage.enabled }}{{ $_ := set $all $name $name }}{{ end }}{{ end -}}
{{- range $env, $_ := .Values.envs }}{{ $_ := set $all (include "prl.envserver" $env) "envserver" }}{{ end -}}
{{- if .Values.trainer.enabled }}{{ $_ := set $all "trainer" "trainer" }}{{ end -}}
{{- toJson $all -}}
{{- end }}

{{/* The variables of every process. Takes (dict "root" $ "stage" name). */}}
{{- define "prl.env" -}}
{{- $v := .root.Values -}}
- {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: PRL__RUN__NAME, value: {{ $v.run | quote }}}
- {name: PRL__BROKERS, value: {{ toJson $v.kafka.brokers | quote }}}
- {name: PRL__DIR, value: /runs}
- {name: PRL__TELEMETRY, value: "0.0.0.0:9090"}
{{- if $v.kafka.tls }}
- {name: PRL__KAFKA__TLS, value: "true"}
{{- if $v.kafka.caSecret.name }}
- {name: PRL__KAFKA__CA_FILE, value: /etc/prl/kafka-ca/ca.crt}
{{- end }}
{{- end }}
{{- if $v.kafka.sasl }}
- {name: PRL__KAFKA__SASL, value: {{ $v.kafka.sasl }}}
- {name: PRL__KAFKA__USER, value: {{ printf "%s.%s" $v.run .stage | quote }}}
- {name: PRL__KAFKA__PASSWORD_FILE, value: /etc/prl/kafka-user/password}
{{- end }}
{{- if $v.tracing.endpoint }}
- {name: PRL__TRACING__ENDPOINT, value: {{ $v.tracing.endpoint | quote }}}
{{- end }}
{{- range $name, $value := $v.env }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{- define "prl.mounts" -}}
- {name: config, mountPath: /etc/prl/run.toml, subPath: run.toml, readOnly: true}
- {name: runs, mountPath: /runs}
- {name: tmp, mountPath: /tmp}
{{- if and .root.Values.kafka.tls .root.Values.kafka.caSecret.name }}
- {name: kafka-ca, mountPath: /etc/prl/kafka-ca, readOnly: true}
{{- end }}
{{- if .root.Values.kafka.sasl }}
- {name: kafka-user, mountPath: /etc/prl/kafka-user, readOnly: true}
{{- end }}
{{- end }}

{{- define "prl.volumes" -}}
{{- $v := .root.Values -}}
- name: config
  configMap: {name: {{ include "prl.fullname" .root }}-config}
- name: runs
  persistentVolumeClaim: {claimName: {{ $v.storage.existingClaim | default (printf "%s-runs" (include "prl.fullname" .root)) }}}
- name: tmp
  emptyDir: {}
{{- if and $v.kafka.tls $v.kafka.caSecret.name }}
- name: kafka-ca
  secret: {secretName: {{ $v.kafka.caSecret.name }}, items: [{key: {{ $v.kafka.caSecret.key }}, path: ca.crt}]}
{{- end }}
{{- if $v.kafka.sasl }}
- name: kafka-user
  secret:
    secretName: {{ $v.kafka.passwordSecret.name | replace "{run}" $v.run | replace "{stage}" .stage }}
    items: [{key: {{ $v.kafka.passwordSecret.key }}, path: password}]
{{- end }}
{{- end }}

{{/* What holds of every pod. Takes (dict "root" $ "component" name). */}}
{{- define "prl.pod" -}}
serviceAccountName: {{ include "prl.fullname" .root }}-{{ .component }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext: {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{- define "prl.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* A process that never answers is started again; one that does not work yet gets nothing to do. */}}
{{- define "prl.probes" -}}
startupProbe: {httpGet: {path: /healthz, port: telemetry}, periodSeconds: 5, failureThreshold: 60}
livenessProbe: {httpGet: {path: /healthz, port: telemetry}, periodSeconds: 10, timeoutSeconds: 5, failureThreshold: 6}
readinessProbe: {httpGet: {path: /readyz, port: telemetry}, periodSeconds: 5, timeoutSeconds: 5}
{{- end }}

{{/*
A StatefulSet: the name of a pod survives its restarts, and is the name of the process among the others of its stage (--instance).
Takes (dict "root" $ "component" … "stage" … "replicas" n or nil "args" list "env" list "ports" list "own" values "gracePeriod" seconds
"volumes" list "mounts" list "beside" list of init containers that go on).
*/}}
{{- define "prl.workload" -}}
{{- $full := include "prl.fullname" .root -}}
{{- /* A longer one is taken, and makes no pods: a revision is written after it in a label, which has 63 characters. */}}
{{- if gt (len (printf "%s-%s" $full .component)) 52 }}
{{- fail (printf "%s-%s has more than 52 characters: Kubernetes makes no pods of a StatefulSet with such a name; choose a shorter name of the release or of the environment" $full .component) }}
{{- end -}}
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ $full }}-{{ .component }}
  labels: {{- include "prl.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
    prl/stage: {{ .stage }}
spec:
  serviceName: {{ $full }}-stages
  {{- if not (kindIs "invalid" .replicas) }}
  replicas: {{ .replicas }}
  {{- end }}
  podManagementPolicy: Parallel
  selector:
    matchLabels: {{- include "prl.selector" .root | nindent 6 }}
      app.kubernetes.io/component: {{ .component }}
  template:
    metadata:
      labels: {{- include "prl.labels" .root | nindent 8 }}
        app.kubernetes.io/component: {{ .component }}
        prl/stage: {{ .stage }}
      annotations:
        prl/config: {{ sha256sum .root.Values.config }}
    spec:
      {{- include "prl.pod" . | nindent 6 }}
      terminationGracePeriodSeconds: {{ (get . "gracePeriod") | default 60 }}
      {{- with (get .own "nodeSelector") }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with (get .own "tolerations") }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels: {{- include "prl.selector" .root | nindent 14 }}
              app.kubernetes.io/component: {{ .component }}
      {{- with (get . "beside") }}
      initContainers: {{- toYaml . | nindent 8 }}
      {{- end }}
      containers:
        - name: stage
          image: {{ include "prl.image" (dict "root" .root "image" (get .own "image")) }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          args: {{- toYaml (concat (list "--stage" .stage "--config" "/etc/prl/run.toml" "--instance" "$(POD_NAME)") ((get . "args") | default list)) | nindent 12 }}
          env: {{- include "prl.env" . | nindent 12 }}
            {{- with (get . "env") }}{{ toYaml . | nindent 12 }}{{ end }}
          ports:
            - {name: telemetry, containerPort: 9090}
            {{- with (get . "ports") }}{{ toYaml . | nindent 12 }}{{ end }}
          {{- include "prl.probes" . | nindent 10 }}
          securityContext: {{- include "prl.confined" . | nindent 12 }}
          resources: {{- toYaml .own.resources | nindent 12 }}
          volumeMounts: {{- include "prl.mounts" . | nindent 12 }}
            {{- with (get . "mounts") }}{{ toYaml . | nindent 12 }}{{ end }}
      volumes: {{- include "prl.volumes" . | nindent 8 }}
        {{- with (get . "volumes") }}{{ toYaml . | nindent 8 }}{{ end }}
{{- end }}
